"""Pong with a reusable environment: each worker keeps an emulator, and no game sees what another did to it.

python examples/pong_reusable.py
python examples/pong_reusable.py --engine ray --address auto
"""

import pong_policy

import outplay


def reinitialise(env):
    """Run after every task that used the emulator: a reset is enough, and much faster than making a new one."""
    env.reset()
    return env


outplay.reusables.env = outplay.Reusable(pong_policy.make_env, reinitialise)


@outplay.remote(num_returns=2)
def compute_gradient(model: pong_policy.Model, seed: int) -> tuple[pong_policy.Model, float]:
    """Two results, two Refs: rewards can be had without fetching the gradients."""
    return pong_policy.compute_gradient(outplay.reusables.env, model, seed)


def main() -> None:
    args = pong_policy.options(__doc__).parse_args()
    outplay.init(args.engine, address=args.address)

    def play(model: pong_policy.Model, batch: int) -> list:
        stored = outplay.put(model)
        gradients, rewards = [], []
        for seed in range(batch * args.batch_size, (batch + 1) * args.batch_size):
            gradient, reward = compute_gradient.remote(stored, seed)
            gradients.append(gradient)
            rewards.append(reward)
        return list(zip(outplay.get(gradients), outplay.get(rewards), strict=True))

    pong_policy.train(pong_policy.new_model(), args.batches, play)


main()
