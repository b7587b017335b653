"""Pong with actors: each holds an emulator of its own and plays one game of every batch.

python examples/pong_actors.py --batch-size 10
python examples/pong_actors.py --engine ray --address auto
"""

import argparse

import pong_policy

import outplay


# Nothing about threads here: an actor's numpy has one before it is loaded, whichever library it is built with.
@outplay.remote
class PongEnv:
    def __init__(self) -> None:
        self.env = pong_policy.make_env()

    def compute_gradient(self, model: pong_policy.Model, seed: int) -> tuple[pong_policy.Model, float]:
        return pong_policy.compute_gradient(self.env, model, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="process")
    parser.add_argument("--address", help='of a Ray cluster: "auto" or "host:port"')
    parser.add_argument("--batch-size", type=int, default=10, help="games per update, and actors")
    parser.add_argument("--batches", type=int, default=1_000_000, help="updates")
    args = parser.parse_args()
    outplay.init(args.engine, address=args.address)
    actors = [PongEnv.remote() for _ in range(args.batch_size)]

    def play(model: pong_policy.Model, batch: int) -> list:
        stored = outplay.put(model)
        first = batch * args.batch_size
        return outplay.get([actor.compute_gradient.remote(stored, first + i) for i, actor in enumerate(actors)])

    pong_policy.train(pong_policy.new_model(), args.batches, play)


main()
