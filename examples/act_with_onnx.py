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

if len(sys.argv) != 2:
    sys.exit("usage: python act_with_onnx.py policy.onnx (a file that outplay export has written)")
session = onnxruntime.InferenceSession(sys.argv[1])
contract = json.loads(Path(f"{sys.argv[1]}.json").read_text())
states = [entry for entry in contract["inputs"] if entry["role"] == "state"]
names = [output.name for output in session.get_outputs()]
env = gymnasium.make(contract["env"], **contract["env_config"])

for episode in range(5):
    observation, _ = env.reset(seed=episode)
    state = {s["name"]: np.full((1, *s["shape"][1:]), s["initial"], s["dtype"]) for s in states}
    total, is_over = 0.0, False
    while not is_over:
        outputs = dict(zip(names, session.run(None, {"observation": observation[None], **state}), strict=True))
        state = {s["name"]: outputs[s["next"]] for s in states}
        observation, reward, terminated, truncated, _ = env.step(outputs["action"][0])
        total, is_over = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:g}")
