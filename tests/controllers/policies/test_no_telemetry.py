"""The model's runtime reports to nobody: no file of its own, no thread, no address looked up."""

import subprocess
import sys

PROGRAM = """
import sys
if sys.argv[1] == "ours":
    import steadyhand.controllers.policies.onnx
import onnx, onnxruntime, os, time
from onnx import TensorProto, helper
made = helper.make_graph(
    [helper.make_node("Identity", ["x"], ["y"])], "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
session.run(None, {"x": __import__("numpy").zeros(1, "float32")})
time.sleep(0.5)
print(len(os.listdir("/proc/self/task")))
"""


def test_no_file_and_no_thread_of_its_own(tmp_path):
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "ours"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert list(tmp_path.rglob("*")) == []
    assert done.stdout.strip() == "1"
    assert "elemetry" not in done.stderr
