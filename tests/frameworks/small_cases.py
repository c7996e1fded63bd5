"""PyTorch in small: a product, the training of two layers, a captured graph."""

import time

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position
from common import REPEATED, case, main, repeat_products

repeat_products()

import torch
from torch import nn
from torch.nn import functional

torch.use_deterministic_algorithms(REPEATED, warn_only=True)
# Nothing here reads what it did not write, and the software GPU has no kernel to fill with.
torch.utils.deterministic.fill_uninitialized_memory = False
DEVICE = "cuda"


def numbers(*shape):
    """Numbers that are the same whatever instructions the processor has."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 7919 % 1009 / 1009.0 - 0.5).reshape(shape)


def network():
    """Two layers whose weights are such numbers, and their optimizer."""
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(numbers(*parameter.shape) * 0.3)
    model = model.to(DEVICE)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@case
def product():
    """cuBLAS, and copies both ways: nothing of PyTorch's own kernels."""
    left, right = numbers(192, 320).to(DEVICE), numbers(320, 128).to(DEVICE)
    return lambda: left @ right


@case
def training_step():
    """Forward, backward and update; the loss and the first layer's weights."""
    model, optimizer = network()
    images, labels = numbers(256, 64).to(DEVICE), (torch.arange(256) % 10).to(DEVICE)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach(), model[0].weight.detach().clone()

    return step


@case
def graph():
    """An inference of the same network as a captured graph."""
    model, _ = network()
    images = numbers(256, 64).to(DEVICE)
    stream, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.inference_mode():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(images)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(captured):
            result = model(images)
            images.copy_(images * 0.5)

    def step():
        captured.replay()
        return result.clone()

    return step


if __name__ == "__main__":
    main(torch.cuda.synchronize, BEGAN)
