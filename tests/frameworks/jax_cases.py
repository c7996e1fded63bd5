"""JAX: jit, grad, vmap, random numbers, a training loop."""

import os
import time

BEGAN = time.perf_counter()
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

# pylint: disable=wrong-import-position
import jax
import jax.numpy as jnp

from common import case, main


@case
def jit_arithmetic():
    """Elementwise work and a reduction."""
    numbers = jnp.linspace(-3, 3, 1 << 20)
    run = jax.jit(lambda x: (jnp.sin(x) * jnp.exp(-x * x)).reshape(1024, 1024).sum(0))
    return lambda: run(numbers)


@case
def mlp_training_step():
    """Three layers under jit with grad and vmap."""
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = (256, 512, 512, 10)
    weights = [jax.random.normal(key, shape) * 0.05 for key, shape in zip(keys, zip(sizes, sizes[1:]))]
    images, labels = jax.random.normal(keys[3], (512, 256)), jnp.arange(512) % 10

    def forward(weights, image):
        for weight in weights[:-1]:
            image = jax.nn.relu(image @ weight)
        return image @ weights[-1]

    def loss_of(weights):
        logits = jax.vmap(forward, (None, 0))(weights, images)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    @jax.jit
    def train(weights):
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        return loss, [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]

    def step():
        nonlocal weights
        loss, weights = train(weights)
        return loss

    return step


@case
def convolution_and_sort():
    """A convolution, an FFT and a sort."""
    image = jax.random.normal(jax.random.key(3), (8, 3, 64, 64))
    kernel = jax.random.normal(jax.random.key(4), (16, 3, 3, 3))

    @jax.jit
    def run(image):
        features = jax.lax.conv(image, kernel, (1, 1), "SAME")
        return jnp.sort(jnp.abs(jnp.fft.rfft(features))[..., :32].reshape(-1))[::1000]

    return lambda: run(image)


@case
def linear_algebra():
    """Products, a decomposition and a solution."""
    matrix = jax.random.normal(jax.random.key(5), (256, 256))
    square = matrix @ matrix.T + 256 * jnp.eye(256)
    run = jax.jit(lambda a: (jnp.linalg.cholesky(a), jnp.linalg.solve(a, matrix)))
    return lambda: run(square)


if __name__ == "__main__":
    main(lambda: jax.block_until_ready(jnp.zeros(1) + 1), BEGAN)
