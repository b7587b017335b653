"""Pong with actors: each holds an emulator of its own, and they play the games of a batch side by side.

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
    parser = pong_policy.options(__doc__)
    parser.add_argument("--actors", type=int, default=10, help="at most; they take turns with the games of a batch")
    args = parser.parse_args()
    outplay.init(args.engine, address=args.address)
    actors = [PongEnv.remote() for _ in range(min(args.actors, args.batch_size))]

    def play(model: pong_policy.Model, batch: int) -> list:
        stored = outplay.put(model)
        first = batch * args.batch_size
        turns = [(actors[i % len(actors)], first + i) for i in range(args.batch_size)]
        return outplay.get([actor.compute_gradient.remote(stored, seed) for actor, seed in turns])

    pong_policy.train(pong_policy.new_model(), args.batches, play)


main()
