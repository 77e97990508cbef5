// An OPC UA client that is not ours: does what a SCADA system does, and prints what came of it.
//
//   node scada_client.mjs SETTINGS.json
//
// SETTINGS: endpoint, loop (namespace URI), pki (scratch folder), server (certificate, PEM), and
// clients: name -> {certificate, key, user, password}; with `latched` (a reason code) and `swap` (a
// bundle's name) it plays the last chapter only. Prints one JSON object: step -> result.
import { readFileSync, copyFileSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import opcua from "node-opcua-client";
import certificates from "node-opcua-certificate-manager";

const {
  AttributeIds, BrowseDirection, DataType, MessageSecurityMode, OPCUAClient,
  SecurityPolicy, TimestampsToReturn, UserTokenType, VariantArrayType,
  constructEventFilter, ofType, resolveNodeId,
} = opcua;
const { OPCUACertificateManager } = certificates;
const settings = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const results = {};

async function manager(name) {
  const rootFolder = join(settings.pki, name);
  const made = new OPCUACertificateManager({ rootFolder, automaticallyAcceptUnknownCertificate: false });
  await made.initialize();
  mkdirSync(join(rootFolder, "trusted", "certs"), { recursive: true });
  copyFileSync(settings.server, join(rootFolder, "trusted", "certs", "server.pem"));
  return made;
}

async function connect(name, options = {}) {
  const who = settings.clients[name];
  const client = OPCUAClient.create({
    applicationUri: who.uri,
    applicationName: "scada",
    certificateFile: who.certificate,
    privateKeyFile: who.key,
    clientCertificateManager: await manager(name),
    securityMode: MessageSecurityMode.SignAndEncrypt,
    securityPolicy: SecurityPolicy.Basic256Sha256,
    endpointMustExist: false,
    requestedSessionTimeout: 60000,
    connectionStrategy: { maxRetry: 0, initialDelay: 100, maxDelay: 200 },
    transportTimeout: 10000,
    ...options,
  });
  try {
    await client.connect(settings.endpoint);
    const user = options.anonymous
      ? undefined
      : { type: UserTokenType.UserName, userName: who.user, password: who.password };
    const session = await client.createSession(user);
    return { client, session };
  } catch (error) {
    await client.disconnect().catch(() => undefined);
    throw error;
  }
}

async function step(name, work) {
  try {
    results[name] = { ok: true, ...(await work()) };
  } catch (error) {
    results[name] = { ok: false, error: String(error.message ?? error).split("\n")[0] };
  }
}

async function refusedStep(name, who, options) {
  await step(name, async () => {
    const { client, session } = await connect(who, options);
    await session.close();
    await client.disconnect();
    return { in: true };
  });
}

async function tree(session, nodeId, path, found) {
  const browsed = await session.browse({
    nodeId,
    browseDirection: BrowseDirection.Forward,
    referenceTypeId: "HierarchicalReferences",
    includeSubtypes: true,
    nodeClassMask: 0,
    resultMask: 63,
  });
  for (const reference of browsed.references ?? []) {
    const name = path ? `${path}.${reference.browseName.name}` : reference.browseName.name;
    found[name] = {
      id: reference.nodeId.toString(),
      type: reference.typeDefinition?.toString() ?? "",
      kind: reference.nodeClass,
    };
    await tree(session, reference.nodeId, name, found);
  }
}

function plain(variant) {
  if (variant === undefined || variant === null) return null;
  const value = variant.value;
  if (typeof value === "bigint") return Number(value);
  if (variant.dataType === DataType.UInt64 && Array.isArray(value)) return value[0] * 2 ** 32 + value[1];
  if (value && value.text !== undefined) return value.text;
  if (Array.isArray(value)) return value.map((one) => (one && one.text !== undefined ? one.text : one));
  return value;
}

async function story() {
  const { client, session } = await connect("operator");
  const index = (await session.readNamespaceArray()).indexOf(settings.loop);
  const id = (path) => `ns=${index};s=${path}`;
  const read = async (path, attributeId = AttributeIds.Value) => {
    const value = await session.read({ nodeId: id(path), attributeId });
    return { value: plain(value.value), status: value.statusCode.name };
  };
  const call = async (object, method, inputs, using = session) => {
    const answer = await using.call({
      objectId: id(object),
      methodId: id(method),
      inputArguments: inputs,
    });
    return {
      status: answer.statusCode.name,
      outputs: (answer.outputArguments ?? []).map(plain),
      arguments: (answer.inputArgumentResults ?? []).map((one) => one.name),
    };
  };
  const text = (value) => ({ dataType: DataType.String, value });
  const number = (value) => ({ dataType: DataType.Double, value });
  const output = `Outputs.${settings.output}`;

  await step("browse", async () => {
    const found = {};
    await tree(session, id("Loop"), "", found);
    return { found };
  });
  await step("read", async () => {
    const values = {};
    for (const path of settings.read) values[path] = await read(path);
    return { values };
  });
  await step("units", async () => {
    const range = (await session.read({ nodeId: id(`${output}.Request.EURange`) })).value.value;
    const units = (await session.read({ nodeId: id(`${output}.Request.EngineeringUnits`) })).value.value;
    return { low: range.low, high: range.high, unit: units.displayName.text, number: units.unitId };
  });
  await step("arguments", async () => {
    const given = (await session.read({ nodeId: id(`${output}.SetOverride.InputArguments`) })).value.value;
    return { names: given.map((one) => one.name), types: given.map((one) => one.dataType.toString()) };
  });
  await step("service", async () => ({
    level: (await session.read({ nodeId: "i=2267" })).value.value,
    state: (await session.read({ nodeId: "i=2259" })).value.value,
    product: (await session.read({ nodeId: "i=2261" })).value.value,
  }));
  await step("subscribe", async () => {
    const subscription = await session.createSubscription2({
      requestedPublishingInterval: 200,
      requestedLifetimeCount: 100,
      requestedMaxKeepAliveCount: 10,
      maxNotificationsPerPublish: 100,
      publishingEnabled: true,
      priority: 1,
    });
    const seen = [];
    const item = await subscription.monitor(
      { nodeId: id("Tick"), attributeId: AttributeIds.Value },
      { samplingInterval: 100, discardOldest: true, queueSize: 10 },
      TimestampsToReturn.Both,
    );
    await new Promise((resolve) => {
      const enough = setTimeout(resolve, 8000);
      item.on("changed", (value) => {
        seen.push(plain(value.value));
        if (seen.length >= 4) { clearTimeout(enough); resolve(); }
      });
    });
    await subscription.terminate();
    return { seen };
  });
  await step("mode", () => call("Mode", "Mode.Request", [text("shadow"), text("by another client")]));
  await step("mode-by-type", async () => {
    const types = (await session.readNamespaceArray()).indexOf("urn:steadyhand:types");
    const answer = await session.call({
      objectId: id("Mode"),
      methodId: `ns=${types};s=ModeType.Request`,
      inputArguments: [text("full"), text("back again")],
    });
    return { status: answer.statusCode.name, outputs: answer.outputArguments.map(plain) };
  });
  await step("mode-unknown", () => call("Mode", "Mode.Request", [text("warp"), text("why not")]));
  await step("override", () =>
    call(output, `${output}.SetOverride`, [number(20), number(7200), text("valve is being watched")]));
  await step("overridden", async () => {
    for (let i = 0; i < 40; i += 1) {
      if ((await read(`${output}.OverrideActive`)).value) break;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    const values = {};
    for (const name of ["OverrideActive", "OverrideValue", "OverrideOwner", "OverrideReason"])
      values[name] = (await read(`${output}.${name}`)).value;
    return { values };
  });
  await step("override-too-far", () =>
    call(output, `${output}.SetOverride`, [number(1e6), number(60), text("too far")]));
  await step("override-of-a-type", () =>
    call(output, `${output}.SetOverride`, [text("20"), number(60), text("text for a number")]));
  await step("override-short", () => call(output, `${output}.SetOverride`, [number(20)]));
  await step("clear", () => call(output, `${output}.ClearOverride`, []));
  await step("clear-again", () => call(output, `${output}.ClearOverride`, []));
  await step("ack", () => call("Alarms", "Alarms.Acknowledge", [text("SERVER_ID")]));
  await step("shelve", () =>
    call("Alarms", "Alarms.Shelve", [text("OBS_STALE"), number(3600), text("sensor is changed")]));
  await step("unshelve", () => call("Alarms", "Alarms.Unshelve", [text("OBS_STALE")]));
  await step("swap-as-operator", () => call("Bundle", "Bundle.Swap", [text("x.shb"), text("no")]));
  await step("write", async () => {
    const status = await session.write({
      nodeId: id(`${output}.Request`),
      attributeId: AttributeIds.Value,
      value: { value: { dataType: DataType.Double, value: 1.0, arrayType: VariantArrayType.Scalar } },
    });
    return { status: status.name };
  });
  await step("viewer", async () => {
    const other = await connect("viewer");
    const seen = await call("Mode", "Mode.Request", [text("off"), text("I may not")], other.session);
    await other.session.close();
    await other.client.disconnect();
    return seen;
  });
  await session.close();
  await client.disconnect();
}

// The last chapter: a latched alarm is there; acknowledge it, exchange the bundle, stop.
async function end() {
  const { client, session } = await connect("engineer");
  const index = (await session.readNamespaceArray()).indexOf(settings.loop);
  const id = (path) => `ns=${index};s=${path}`;
  const text = (value) => ({ dataType: DataType.String, value });
  const call = async (objectId, methodId, inputArguments) => {
    const answer = await session.call({ objectId, methodId, inputArguments });
    return { status: answer.statusCode.name, outputs: (answer.outputArguments ?? []).map(plain) };
  };
  const read = async (path) => plain((await session.read({ nodeId: id(path) })).value);
  const until = async (check) => {
    for (let i = 0; i < 300; i += 1) {
      if (await check()) return;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error("waited for too long");
  };
  const fields = ["EventId", "ConditionName", "Severity", "Message", "Retain", "SourceName",
    "AckedState.Id", "ActiveState.Id", "ClientUserId", "Comment"];
  const filter = constructEventFilter(fields, ofType(resolveNodeId("ConditionType")));
  const events = [];
  const subscription = await session.createSubscription2({
    requestedPublishingInterval: 200, requestedLifetimeCount: 100, requestedMaxKeepAliveCount: 10,
    maxNotificationsPerPublish: 100, publishingEnabled: true, priority: 1,
  });
  const item = await subscription.monitor(
    { nodeId: "i=2253", attributeId: AttributeIds.EventNotifier },
    { samplingInterval: 0, discardOldest: true, queueSize: 100, filter },
    TimestampsToReturn.Neither,
  );
  item.on("changed", (values) =>
    events.push({ ...Object.fromEntries(fields.map((name, i) => [name, plain(values[i])])) }));
  const states = [];
  const status = await subscription.monitor(
    { nodeId: "i=2259", attributeId: AttributeIds.Value },
    { samplingInterval: 100, discardOldest: true, queueSize: 10 },
    TimestampsToReturn.Neither,
  );
  status.on("changed", (value) => states.push(value.value.value));
  const alarm = () => events.findLast((event) => event.ConditionName === settings.latched);
  const shown = ({ EventId, ...event }) => event;

  await step("refresh", async () => {
    const answer = await call("i=2782", "i=3875",
      [{ dataType: DataType.UInt32, value: subscription.subscriptionId }]);
    await until(() => alarm());
    return { ...answer, event: shown(alarm()) };
  });
  await step("acknowledge", async () => {
    const answer = await call(id(`Condition.${settings.latched}`), "i=9111", [
      { dataType: DataType.ByteString, value: alarm().EventId },
      { dataType: DataType.LocalizedText, value: { text: "rights are given again" } },
    ]);
    await until(() => alarm().Retain === false);
    return { ...answer, event: shown(alarm()) };
  });
  await step("swap", async () => {
    const answer = await call(id("Bundle"), id("Bundle.Swap"), [text(settings.swap), text("better")]);
    await until(async () => (await read("Bundle.Number")) === 8);
    return { ...answer, name: await read("Bundle.Name") };
  });
  await step("stop", async () => {
    const answer = await call(id("Loop"), id("Stop"), [text("end of the story")]);
    await until(() => states.at(-1) === 4).catch((error) => {
      throw new Error(`${error.message}: ${states}`);
    });
    return { ...answer, states };
  });
  await client.disconnect().catch(() => undefined);
}

if (settings.latched) {
  await step("end", async () => { await end(); return {}; });
  process.stdout.write(JSON.stringify(results));
  process.exit(0);
}
await step("story", async () => { await story(); return {}; });
await refusedStep("anonymous", "operator", { anonymous: true });
await refusedStep("wrong-password", "liar");
await refusedStep("stranger", "stranger");
await refusedStep("expired", "expired");
await refusedStep("unencrypted", "operator", {
  securityMode: MessageSecurityMode.None, securityPolicy: SecurityPolicy.None,
});
process.stdout.write(JSON.stringify(results));
process.exit(0);
