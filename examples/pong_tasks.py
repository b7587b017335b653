"""Pong with tasks: a typed remote function plays a game and returns its gradient; put and get move the rest.

python examples/pong_tasks.py
python examples/pong_tasks.py --engine ray --address auto
"""

import pong_policy

import outplay


# Typed: a model that is no dict, or a seed that is no number, is refused where the call is made.
@outplay.remote(typed=True)
def compute_gradient(model: dict, seed: int) -> tuple:
    """One game, in an emulator that this worker keeps."""
    return pong_policy.compute_gradient(pong_policy.cached_env(), model, seed)


def main() -> None:
    args = pong_policy.options(__doc__).parse_args()
    outplay.init(args.engine, address=args.address)

    def play(model: pong_policy.Model, batch: int) -> list:
        stored = outplay.put(model)  # 5 MB: once into shared memory, not once per game
        seeds = range(batch * args.batch_size, (batch + 1) * args.batch_size)
        return outplay.get([compute_gradient.remote(stored, seed) for seed in seeds])

    pong_policy.train(pong_policy.new_model(), args.batches, play)


main()
