"""Pong with actors: each holds an emulator of its own and plays one game of every batch.

python examples/pong_actors.py --batch-size 10
python examples/pong_actors.py --engine ray --address auto
"""

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
    args = pong_policy.arguments(__doc__)
    outplay.init(args.engine, address=args.address)
    actors = [PongEnv.remote() for _ in range(args.batch_size)]

    def play(model: pong_policy.Model, batch: int) -> list:
        stored = outplay.put(model)
        first = batch * args.batch_size
        return outplay.get([actor.compute_gradient.remote(stored, first + i) for i, actor in enumerate(actors)])

    pong_policy.train(pong_policy.new_model(), args.batches, play)


main()
