"""Put a model into the store, let ten tasks compute a gradient each, add them up, update. On any engine.

python examples/parallel_gradients.py
python examples/parallel_gradients.py --engine ray --address auto
"""

import argparse

import numpy as np

import outplay

TRUE_WEIGHTS = np.array([3.0, -2.0, 0.5])
BATCH, RATE = 10, 0.02


@outplay.remote(num_returns=2)
def compute_gradient(model: dict[str, np.ndarray], seed: int) -> tuple[dict[str, np.ndarray], float]:
    """The gradient of a squared error on data that this seed, and no other, draws."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(200, 3))
    error = x @ model["w"] + model["b"] - (x @ TRUE_WEIGHTS + 1.0)
    return {"w": x.T @ error / len(x), "b": error.mean()}, float((error**2).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="process")
    parser.add_argument("--address", help='of a Ray cluster: "auto" or "host:port"')
    parser.add_argument("--updates", type=int, default=60)
    args = parser.parse_args()
    outplay.init(args.engine, address=args.address)

    model = {"w": np.zeros(3), "b": np.zeros(())}
    for update in range(args.updates):
        model_ref = outplay.put(model)
        refs = [compute_gradient.remote(model_ref, update * BATCH + i) for i in range(BATCH)]
        gradients = outplay.get([gradient for gradient, _ in refs])
        losses = outplay.get([loss for _, loss in refs])
        model = {name: value - RATE * sum(g[name] for g in gradients) for name, value in model.items()}
        if update % 20 == 0 or update == args.updates - 1:
            print(f"update {update:3d}  mean squared error {np.mean(losses):.6f}")
    print("weights", np.round(model["w"], 3), "bias", np.round(model["b"], 3))


main()
