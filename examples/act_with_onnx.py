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
path = sys.argv[1]
if missing := [name for name in (path, f"{path}.json") if not Path(name).is_file()]:
    sys.exit(f"there is no file {missing[0]}; outplay export RUN policy.onnx writes policy.onnx and policy.onnx.json")
contract = json.loads(Path(f"{path}.json").read_text())
states = [entry for entry in contract["inputs"] if entry["role"] == "state"]
others = [entry["name"] for entry in contract["inputs"] + contract["outputs"][:1] if entry["role"] != "state"]
is_array = contract["observation_space"]["type"] in ("Box", "Discrete", "MultiBinary", "MultiDiscrete")
if contract["format"] != "onnx" or others != ["observation", "action"] or not is_array:
    sys.exit(f"{path}: this example takes an ONNX file with one array as observation and one as action, no more inputs")
if contract.get("env") not in gymnasium.registry or contract["stacked_frames"] > 1 or contract["atari_preprocessing"]:
    sys.exit(f"{path}: this example takes an environment of gymnasium.make, not preprocessed and without frame_stack")
session = onnxruntime.InferenceSession(path)
names = [output.name for output in session.get_outputs()]
env = gymnasium.make(contract["env"], **contract["env_config"])

for episode in range(5):
    observation, _ = env.reset(seed=episode)
    state = {s["name"]: np.full((1, *s["shape"][1:]), s["initial"], s["dtype"]) for s in states}
    total, is_over = 0.0, False
    while not is_over:
        inputs = {"observation": np.asarray(observation, contract["inputs"][0]["dtype"])[None], **state}
        outputs = dict(zip(names, session.run(None, inputs), strict=True))
        state = {s["name"]: outputs[s["next"]] for s in states}
        observation, reward, terminated, truncated, _ = env.step(outputs["action"][0])
        total, is_over = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:g}")
