"""Acts with an exported policy: onnxruntime and numpy alone, Gymnasium for the environment.

outplay export RUN policy.onnx
python act_with_onnx.py policy.onnx
"""

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime

if not ((path := Path(*sys.argv[1:2])).is_file() and Path(f"{path}.json").is_file()):
    sys.exit("usage: python act_with_onnx.py policy.onnx (written by outplay export, with policy.onnx.json beside it)")
contract = json.loads(Path(f"{path}.json").read_text())
states = [entry for entry in contract["inputs"] if entry["role"] == "state"]
others = [entry["name"] for entry in contract["inputs"] + contract["outputs"][:1] if entry["role"] != "state"]
found = [contract["format"], contract["stacked_frames"], contract.get("env") in gymnasium.registry, *others]
if found != ["onnx", 1, True, "observation", "action"]:
    sys.exit(f"{path}: this example takes ONNX files of a Gymnasium id with one array as observation and as action")
session, env = onnxruntime.InferenceSession(path), gymnasium.make(contract["env"], **contract["env_config"])
names = [output.name for output in session.get_outputs()]

for episode in range(5):
    (observation, _), total, is_over = env.reset(seed=episode), 0.0, False
    state = {s["name"]: np.full((1, *s["shape"][1:]), s["initial"], s["dtype"]) for s in states}
    while not is_over:
        rows = np.array([observation], contract["inputs"][0]["dtype"])
        outputs = dict(zip(names, session.run(None, {"observation": rows, **state}), strict=True))
        state = {s["name"]: outputs[s["next"]] for s in states}
        observation, reward, terminated, truncated, _ = env.step(outputs["action"][0])
        total, is_over = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:g}")
