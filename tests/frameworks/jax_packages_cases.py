"""What people run on top of JAX: Flax and Optax, Equinox and Diffrax, NumPyro, Optimistix."""

import os
import time

BEGAN = time.perf_counter()
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

# pylint: disable=wrong-import-position,import-outside-toplevel
import jax
import jax.numpy as jnp

from common import case, main


@case
def flax_training():
    """Flax and Optax: a small convolutional network learns by Adam."""
    import optax
    from flax import linen

    class Network(linen.Module):
        """A convolution and a dense layer."""

        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Conv(8, (3, 3))(x))
            return linen.Dense(10)(x.reshape(x.shape[0], -1))

    images = jax.random.normal(jax.random.key(1), (32, 16, 16, 3))
    labels = jnp.arange(32) % 10
    network, optimizer = Network(), optax.adam(1e-3)
    weights = network.init(jax.random.key(2), images)
    state = optimizer.init(weights)

    @jax.jit
    def train(weights, state):
        def loss_of(weights):
            return optax.softmax_cross_entropy_with_integer_labels(network.apply(weights, images), labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        updates, state = optimizer.update(gradients, state)
        return loss, optax.apply_updates(weights, updates), state

    def step():
        nonlocal weights, state
        loss, weights, state = train(weights, state)
        return loss

    return step


@case
def diffrax_equation():
    """Equinox and Diffrax: an adaptive solver with a network as the derivative."""
    import diffrax
    import equinox

    network = equinox.nn.MLP(4, 4, 32, 2, key=jax.random.key(3))
    term = diffrax.ODETerm(lambda t, y, _: jnp.tanh(network(y)) - y * t)
    start = jax.random.normal(jax.random.key(4), (64, 4))

    @jax.jit
    def solve(start):
        solver, control = diffrax.Tsit5(), diffrax.PIDController(rtol=1e-4, atol=1e-6)
        one = lambda y: diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.1, y, stepsize_controller=control).ys
        return jax.vmap(one)(start)

    return lambda: solve(start)


@case
def numpyro_sampling():
    """NumPyro: the no-U-turn sampler, whose loops depend on the results."""
    import numpyro
    from numpyro import distributions
    from numpyro.infer import MCMC, NUTS

    def model(values):
        mean = numpyro.sample("mean", distributions.Normal(0, 10))
        scale = numpyro.sample("scale", distributions.HalfNormal(5))
        numpyro.sample("values", distributions.Normal(mean, scale), obs=values)

    values = jax.random.normal(jax.random.key(5), (200,)) * 2 + 3
    sampler = MCMC(NUTS(model), num_warmup=20, num_samples=20, progress_bar=False)

    def step():
        sampler.run(jax.random.key(6), values)
        return tuple(sampler.get_samples().values())

    return step


@case
def optimistix_solver():
    """Optimistix and Lineax: least squares and a linear system."""
    import lineax
    import optimistix

    matrix = jax.random.normal(jax.random.key(7), (64, 64)) + 8 * jnp.eye(64)
    right = jnp.linspace(-1, 1, 64)

    @jax.jit
    def solve(right):
        solution = lineax.linear_solve(lineax.MatrixLinearOperator(matrix), right).value
        residual = lambda y, _: jnp.tanh(matrix @ y) - right * 0.5
        solver = optimistix.LevenbergMarquardt(1e-4, 1e-4)
        return solution, optimistix.least_squares(residual, solver, solution, max_steps=50, throw=False).value

    return lambda: solve(right)


@case
def callbacks_and_loops():
    """Callbacks into Python, while loops, scans and donated buffers."""
    import numpy

    def add_one(x):
        return numpy.asarray(x) + 1

    @jax.jit
    def run(x):
        y = jax.pure_callback(add_one, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        y = jax.lax.while_loop(lambda c: c[0] < 20, lambda c: (c[0] + 1, jnp.sin(c[1]) + 0.1), (0, y))[1]
        return jax.lax.scan(lambda c, v: (c * 0.9 + v, c), jnp.float32(0), y)

    numbers = jnp.linspace(0, 1, 1000)
    return lambda: run(numbers)


if __name__ == "__main__":
    main(lambda: jax.block_until_ready(jnp.zeros(())), BEGAN)
