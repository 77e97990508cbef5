"""Which bundle a service starts with, and that no process is left of those it does not take."""

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steadyhand.controllers.errors import BundleError, ConfigError
from steadyhand.controllers.frames import Observation, ProposalStatus
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import assemble, check, child
from steadyhand.runtime.admission import admit, trusted_keys
from steadyhand.runtime.bundle.commands import permit_rollback
from steadyhand.runtime.bundle.load import Bundle
from steadyhand.runtime.bundle.signature import generate_key, public_pem, read_private
from steadyhand.runtime.config import Loaded, parse_config
from steadyhand.runtime.config_schema import QUICK_WORD
from steadyhand.runtime.crash_loop import CrashLoop
from steadyhand.runtime.slot import Closable
from steadyhand.runtime.spawn import Spawned
from steadyhand.runtime.state_folder import installed_state
from steadyhand.runtime.swap import Swap
from steadyhand.runtime.trial import First, first_policy
from tests.support.loop_rig import SHIPPED, Bundles

PATIENCE_S = 30.0


def children() -> set[int]:
    """Processes of policies that belong to this one."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            line = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and b"policy_child" in line:
            found.add(int(stat.parent.name))
    return found


class Site:
    """A plant's configuration, its bundles, and what has run here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundles = Bundles(folder / "made")
        self.one = self.bundles.pack("first", 1)
        self.two = self.bundles.pack("second", 2, seed=1)
        self.opened: list[First] = []

    def configured(self, bundle: Path, isolation: str = "process") -> Loaded:
        text = SHIPPED.read_text("utf-8")
        for old, new in {
            "file: thermal_storage.shb": f"file: {bundle}",
            "trusted_keys: keys": f"trusted_keys: {self.bundles.keys}",
            "isolation: process": f"isolation: {isolation}",
        }.items():
            assert old in text
            text = text.replace(old, new, 1)
        loaded = parse_config(text.encode(), self.folder / "steadyhand.yaml")
        assert isinstance(loaded, Loaded), loaded
        return loaded

    def ran(self, bundle: Path, keep: bool = True) -> Path:
        """`bundle` has driven here; returns where its copy lies."""
        loaded = self.configured(bundle)
        self.state.mkdir(mode=0o700, exist_ok=True)
        found = admit(loaded, assemble.make_plant(loaded), bundle)
        state = installed_state(loaded)
        content = found.content if keep else None
        state.record(found.manifest, found.manifest_sha256, datetime.now(UTC), content)
        return state.kept("thermal_storage")

    @property
    def state(self) -> Path:
        return self.folder / "var"

    def start(self, bundle: Path, **options: Any) -> First:
        isolation = options.pop("isolation", "process")
        loaded = self.configured(bundle, isolation)
        first = first_policy(loaded, assemble.make_plant(loaded), CrashLoop(self.folder), **options)
        self.opened.append(first)
        return first


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    before = children()
    made = Site(tmp_path)
    yield made
    for first in made.opened:
        if isinstance(first.policy, Closable):
            first.policy.close()
    assert children() == before, "a policy's process was left behind"


def version(first: First) -> int:
    assert first.bundle is not None
    return first.bundle.manifest.version


def answer(first: First) -> Any:
    n_y = len(first.bundle.spec.observations) if first.bundle else 24
    values = np.full(n_y, 0.5)
    observation = Observation(1, 0.0, values, values, np.zeros(n_y, np.int8), np.zeros(1))
    return first.policy.propose(observation)


# -- the configured bundle -------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_good_bundle_is_what_drives(site: Site, isolation: str) -> None:
    first = site.start(site.one, isolation=isolation)
    assert (version(first), first.alarm) == (1, "")
    assert answer(first).status is ProposalStatus.OK
    assert first.bundle is not None
    assert first.bundle.examined["provider"] == "cpu"
    assert len(children()) == (isolation == "process")


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_the_process_that_waits_is_used_or_ended(site: Site, isolation: str) -> None:
    spawned = Spawned()
    seen: list[set[int]] = []
    first = site.start(
        site.one, isolation=isolation, spawned=spawned, meanwhile=lambda: seen.append(children())
    )
    assert answer(first).status is ProposalStatus.OK
    if isolation == "process":
        assert children() == {spawned.process.pid}
        assert seen == [{spawned.process.pid}], "one process does both: trial and service"
    else:
        assert spawned.process.poll() is not None


def test_without_a_bundle_nothing_is_proposed_and_nobody_is_alarmed(site: Site) -> None:
    loaded = site.configured(site.one)
    loaded = Loaded(
        loaded.config.model_copy(update={"bundle": None}),
        loaded.source,
        loaded.file,
        loaded.digest,
    )
    spawned = Spawned()
    first = first_policy(loaded, assemble.make_plant(loaded), CrashLoop(site.folder), spawned)
    assert first.bundle is None
    assert first.alarm == ""
    proposal = first.policy.propose(None)  # type: ignore[arg-type]
    assert (proposal.status, proposal.faults) == (ProposalStatus.ABSENT, ())
    assert spawned.process.poll() is not None


def spoil(site: Site) -> Path:
    data = bytearray(site.one.read_bytes())
    data[len(data) // 2] ^= 1
    spoiled = site.folder / "spoiled.shb"
    spoiled.write_bytes(data)
    return spoiled


REFUSED: dict[str, tuple[Callable[[Site], Path], str]] = {
    "altered": (spoil, "BUNDLE_HASH"),
    "gone": (lambda site: site.folder / "nothing.shb", "BUNDLE_FILE"),
    "by a stranger": (lambda site: site.bundles.pack("odd", 9, known=False), "BUNDLE_SIG"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_none_ever_ran_a_refused_bundle_ends_the_start(site: Site, name: str) -> None:
    make, code = REFUSED[name]
    spawned = Spawned()
    with pytest.raises(BundleError, match=code):
        site.start(make(site), spawned=spawned)
    assert spawned.process.poll() is not None
    assert not site.state.exists()


def test_a_failure_while_the_trial_is_under_way_ends_its_process(site: Site) -> None:
    def fail() -> None:
        raise ConfigError("no such module")

    with pytest.raises(ConfigError, match="no such module"):
        site.start(site.one, meanwhile=fail)


# -- after a swap and a crash ----------------------------------------------------------------------


def test_the_swapped_bundle_comes_back_where_the_configuration_names_the_older(
    site: Site,
) -> None:
    site.ran(site.two)
    spawned = Spawned()
    first = site.start(site.one, spawned=spawned)
    assert version(first) == 2, "the version never goes down unasked"
    assert "BUNDLE_ROLLBACK" in first.alarm
    assert "second v2" in first.alarm
    assert answer(first).status is ProposalStatus.OK
    assert spawned.process.poll() is not None


@pytest.mark.parametrize("name", REFUSED)
def test_the_last_bundle_comes_back_whatever_became_of_its_file(site: Site, name: str) -> None:
    make, code = REFUSED[name]
    site.ran(site.one)
    first = site.start(make(site))
    assert version(first) == 1
    assert code in first.alarm
    assert answer(first).status is ProposalStatus.OK


def test_a_newer_configured_bundle_wins_over_the_kept_one(site: Site) -> None:
    site.ran(site.one)
    first = site.start(site.two)
    assert (version(first), first.alarm) == (2, "")


def lose(site: Site, kept: Path) -> None:
    del site
    kept.unlink()


def alter(site: Site, kept: Path) -> None:
    del site
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes(data)


def put_an_older_one(site: Site, kept: Path) -> None:
    kept.write_bytes(site.one.read_bytes())


def put_a_strangers(site: Site, kept: Path) -> None:
    kept.write_bytes(site.bundles.pack("odd", 9, known=False).read_bytes())


def put_a_link(site: Site, kept: Path) -> None:
    kept.unlink()
    kept.symlink_to(site.two)


def trust_nobody(site: Site, kept: Path) -> None:
    del kept
    for key in site.bundles.keys.glob("*.pub.pem"):
        key.unlink()


def forget_what_ran(site: Site, kept: Path) -> None:
    del kept
    (site.state / "installed.json").write_text("{")


@pytest.mark.parametrize(
    "harm",
    [lose, alter, put_an_older_one, put_a_strangers, put_a_link, trust_nobody, forget_what_ran],
)
def test_where_nothing_can_be_trusted_the_heuristic_drives_and_says_why(
    site: Site, harm: Callable[[Site, Path], None]
) -> None:
    kept = site.ran(site.two)
    harm(site, kept)
    first = site.start(site.one)
    assert first.bundle is None
    assert "heuristic" in first.alarm
    assert "BUNDLE_" in first.alarm
    proposal = answer(first)
    assert proposal.status is ProposalStatus.ABSENT
    assert [fault.code for fault in proposal.faults] == [ReasonCode.POLICY_ABSENT]
    assert np.isnan(proposal.action).all()


def checked(site: Site, bundle: Path) -> tuple[list[str], str]:
    """Codes that `check` finds of the bundle, and what it says would run instead."""
    loaded = site.configured(bundle)
    problems = check._bundle(loaded, known=[])
    return [problem.code for problem in problems], check.started_instead(loaded, problems)


@pytest.mark.parametrize("name", REFUSED)
def test_check_names_what_run_would_start(site: Site, name: str) -> None:
    """The same answer as the start's, over every refused bundle."""
    make, code = REFUSED[name]
    refused = make(site)
    assert checked(site, refused) == ([code], ""), "none ever ran here: it is a problem"
    site.ran(site.one)
    codes, instead = checked(site, refused)
    first = site.start(refused)
    assert codes == [code]
    assert first.bundle is not None
    assert instead == f"{first.bundle.label}, which ran here last"
    assert instead in first.alarm


def test_check_of_an_older_bundle_than_the_one_that_ran(site: Site) -> None:
    site.ran(site.two)
    assert checked(site, site.one) == (["BUNDLE_ROLLBACK"], "second v2, which ran here last")
    assert checked(site, site.two) == ([], "")


@pytest.mark.parametrize("harm", [lose, alter, put_an_older_one, put_a_strangers, put_a_link])
def test_check_says_where_the_heuristic_would_drive(
    site: Site, harm: Callable[[Site, Path], None]
) -> None:
    harm(site, site.ran(site.two))
    codes, instead = checked(site, site.one)
    assert codes == ["BUNDLE_ROLLBACK"]
    assert instead.startswith("the heuristic ")
    assert "refused, too: BUNDLE_" in instead
    assert site.start(site.one).bundle is None


def test_a_state_that_others_may_write_to_is_refused(site: Site) -> None:
    site.ran(site.two)
    site.state.chmod(0o777)
    with pytest.raises(BundleError, match="BUNDLE_STATE"):
        site.start(site.one)


def test_what_is_kept_is_what_was_verified_and_private(site: Site) -> None:
    kept = site.ran(site.two)
    assert kept.read_bytes() == site.two.read_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600
    recorded = json.loads((site.state / "installed.json").read_text())
    assert recorded["plants"]["thermal_storage"]["version"] == 2


# -- a swap ----------------------------------------------------------------------------------------


def wait_done(swap: Swap) -> None:
    end = time.monotonic() + PATIENCE_S
    while not swap.done:
        assert time.monotonic() < end
        time.sleep(0.005)


def begin(site: Site, file: Path) -> Swap:
    loaded = site.configured(site.one)
    return Swap(loaded, assemble.make_plant(loaded), file)


def test_a_swap_that_is_taken_belongs_to_whoever_took_it(site: Site) -> None:
    swap = begin(site, site.two)
    wait_done(swap)
    made = swap.take()
    site.opened.append(made)
    swap.close()
    assert version(made) == 2
    assert answer(made).status is ProposalStatus.OK
    with pytest.raises(BundleError):
        swap.take()


def test_a_swap_that_nobody_took_leaves_no_process(site: Site) -> None:
    before = children()
    swap = begin(site, site.two)
    wait_done(swap)
    assert len(children()) == len(before) + 1
    swap.close()
    swap.close()
    assert children() == before


def test_a_refused_swap_says_why(site: Site) -> None:
    swap = begin(site, spoil(site))
    wait_done(swap)
    with pytest.raises(BundleError, match="BUNDLE_HASH"):
        swap.take()


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.4])
def test_a_swap_given_up_at_any_moment_leaves_no_process(site: Site, after_s: float) -> None:
    before = children()
    swap = begin(site, site.two)
    time.sleep(after_s)
    swap.close()
    wait_done(swap)
    assert children() == before


def test_a_swap_whose_process_hangs_can_be_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()

    class Deaf(Spawned):
        def __init__(self) -> None:
            super().__init__()
            self.process.send_signal(19)  # SIGSTOP: it will never report

    monkeypatch.setattr(child, "Spawned", Deaf)
    swap = begin(site, site.two)
    end = time.monotonic() + PATIENCE_S
    while children() == before:
        assert time.monotonic() < end
        time.sleep(0.005)
    started = time.monotonic()
    swap.close()
    wait_done(swap)
    assert time.monotonic() - started < 0.5 * child.ChildLimits().start_s
    assert children() == before


def test_a_bundle_is_believed_only_after_its_trial(site: Site) -> None:
    loaded = site.configured(site.one)
    admitted = admit(loaded, assemble.make_plant(loaded), site.one)
    assert isinstance(admitted, Bundle)
    assert admitted.examined == {}


def test_a_key_that_came_after_the_start_signs_no_swap(site: Site) -> None:
    """And one that was taken away since signs none either."""
    loaded = site.configured(site.one)
    parts, keys = assemble.make_plant(loaded), site.bundles.keys
    at_start = trusted_keys(loaded)
    stranger = site.bundles.pack("stranger", 3, known=False)
    public = public_pem(read_private(site.bundles._unknown).public_key(), ["controller"])
    (keys / "late.pub.pem").write_bytes(public)
    assert admit(loaded, parts, stranger).manifest.version == 3  # the next start
    swap = Swap(loaded, parts, stranger, at_start)
    wait_done(swap)
    with pytest.raises(BundleError, match="after the start"):
        swap.take()
    swap.close()
    assert admit(loaded, parts, site.two, at_start).manifest.version == 2
    for file in keys.glob("*.pub.pem"):
        if file.name != "late.pub.pem":
            file.unlink()
    with pytest.raises(BundleError, match="BUNDLE_SIG"):
        admit(loaded, parts, site.two, at_start)


def test_a_permit_beside_the_bundle_lets_just_this_one_back(site: Site) -> None:
    site.ran(site.two)
    loaded = site.configured(site.one)
    parts = assemble.make_plant(loaded)
    with pytest.raises(BundleError, match=r"steadyhand bundle permit-rollback"):
        admit(loaded, parts, site.one)
    key, public = generate_key(site.folder, "chief", ["rollback"])
    (site.bundles.keys / public.name).write_bytes(public.read_bytes())
    token = permit_rollback(site.one, key, site.one.with_name(site.one.name + ".rollback"))
    assert token["version"] == 1
    assert admit(loaded, parts, site.one).manifest.version == 1
    other = site.bundles.pack("third", 1, seed=5)
    other.with_name(other.name + ".rollback").write_bytes(Path(token["token"]).read_bytes())
    with pytest.raises(BundleError, match="BUNDLE_ROLLBACK"):
        admit(loaded, parts, other)


def test_a_quick_bundle_needs_the_word_in_the_configuration(site: Site) -> None:
    loaded = site.configured(site.one)
    section = loaded.config.bundle
    assert section is not None
    assert section.accept_quick is None
    line = "trusted_keys: keys"
    text = SHIPPED.read_text("utf-8").replace(line, f"{line}\n  accept_quick: yes")
    problems = parse_config(text.encode(), site.folder / "x.yaml")
    assert isinstance(problems, list)
    assert QUICK_WORD in problems[0].message
    text = text.replace("accept_quick: yes", f"accept_quick: {QUICK_WORD}")
    assert isinstance(parse_config(text.encode(), site.folder / "x.yaml"), Loaded)
