"""Two GPUs: copies between them, NCCL of one process and of two, data-parallel training."""

import contextlib
import os
import tempfile
import time

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

from common import case, main

# Longest wait for a rank, in seconds.
PATIENCE = 90


def numbers(seed, *shape):
    """Random numbers that do not depend on the device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def join(rank, store):
    """Makes this process one of two ranks, each with its GPU."""
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)


def rank_of(rank, work, store, file):
    """One of two ranks that do some work."""
    join(rank, store)
    result = work(rank)
    if not rank:
        torch.save(result.cpu(), file)
    distributed.barrier()
    distributed.destroy_process_group()


def ranks(work):
    """The first rank's result of work that two ranks do."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "result")
        arguments = (work, os.path.join(folder, "store"), file)
        started = multiprocessing.start_processes(rank_of, arguments, nprocs=2, join=False)
        deadline = time.monotonic() + PATIENCE
        while not started.join(1):
            if time.monotonic() > deadline:
                for process in started.processes:
                    process.kill()
                raise TimeoutError(f"the ranks have not ended within {PATIENCE} s")
        return torch.load(file)


def collectives(rank):
    """An all-reduce, a gather, a scattered reduction and a message."""
    data = numbers(rank, 1 << 20).cuda()
    total = data.clone()
    distributed.all_reduce(total)
    gathered = torch.empty(2, *data.shape, device="cuda")
    distributed.all_gather_into_tensor(gathered, data)
    part = torch.empty(data.shape[0] // 2, device="cuda")
    distributed.reduce_scatter_tensor(part, data)
    if rank:
        distributed.send(data * 2, 0)
        return data
    received = torch.empty_like(data)
    distributed.recv(received, 1)
    return torch.cat([total, gathered.reshape(-1), part, received])


def trained(rank):
    """A network under DistributedDataParallel, and a step of its training that returns the loss."""
    torch.manual_seed(5)
    layers = torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    data, target = numbers(rank, 128, 256).cuda(), torch.arange(128, device="cuda") % 10

    def step():
        loss = torch.nn.functional.cross_entropy(network(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return network, step


def data_parallel(rank):
    """Ten steps of a network under DistributedDataParallel: its losses and weights."""
    network, step = trained(rank)
    losses = [step() for _ in range(10)]
    return torch.cat([torch.stack(losses), *(parameter.detach().reshape(-1) for parameter in network.parameters())])


def once(result):
    """A step whose result was computed before: starting ranks takes seconds."""
    return lambda: result


@case
def two_ranks():
    return once(ranks(collectives))


@case
def data_parallel_training():
    return once(ranks(data_parallel))


def trained_gpt(rank):
    """torch_cases' GPT likewise, with the texts of one GPU there."""
    import torch_cases  # pylint: disable=import-outside-toplevel

    torch_cases.DEVICE = f"cuda:{rank}"
    network = torch.nn.parallel.DistributedDataParallel(torch_cases.model_of(torch_cases.Gpt), device_ids=[rank])
    return network, torch_cases.trained(network, torch_cases.tokens(8, torch_cases.LENGTH), torch_cases.next_word_loss)


def trainer(rank, store, pipe, training, count):
    """A rank that trains `count` steps whenever it is asked, and sends its loss."""
    join(rank, store)
    _, step = training(rank)
    # Until the other end is closed.
    with contextlib.suppress(EOFError):
        while pipe.recv():
            losses = [step() for _ in range(count)]
            pipe.send(losses[-1].item())


def together(training, count):
    """Two processes that train together, `count` steps at a time."""
    context, pipes = multiprocessing.get_context("spawn"), []
    folder = tempfile.mkdtemp()
    for rank in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=trainer, args=(rank, os.path.join(folder, "store"), theirs, training, count), daemon=True).start()
        pipes.append(ours)

    def step():
        for pipe in pipes:
            pipe.send(True)
        losses = []
        for pipe in pipes:
            if not pipe.poll(PATIENCE):
                raise TimeoutError(f"a rank has not answered within {PATIENCE} s")
            losses.append(pipe.recv())
        return torch.tensor(losses)

    return step


@case
def training_ranks():
    """Two processes that train a small network, five steps at a time."""
    return together(trained, 5)


@case
def ddp_training_step():
    """A GPT of 12 layers under DistributedDataParallel, a process for each GPU."""
    return together(trained_gpt, 1)


@case
def between_gpus():
    """Copies from GPU to GPU, and a kernel that waits for one on the other GPU's stream."""
    here = numbers(1, 1 << 22).to("cuda:0")

    def step():
        there = (here * 3).to("cuda:1", non_blocking=True)
        back = (there + 1).to("cuda:0", non_blocking=True)
        torch.cuda.synchronize(1)
        return back - here

    return step


@case
def one_process():
    """NCCL's reduction over the GPUs of one process."""
    parts = [numbers(gpu, 1 << 20).to(f"cuda:{gpu}") for gpu in range(2)]

    def step():
        sums = [part.clone() for part in parts]
        torch.cuda.nccl.all_reduce(sums)
        torch.cuda.synchronize(1)
        return sums[0], sums[1].to("cuda:0")

    return step


# Words of 256 MiB, and how many of a result are judged.
LARGE, JUDGED = 64 << 20, 4096


@case
def all_reduce_256m():
    """NCCL's reduction of 256 MiB over the GPUs of one process."""
    parts = [numbers(gpu, JUDGED).to(f"cuda:{gpu}").repeat(LARGE // JUDGED) for gpu in range(2)]
    sums = [torch.empty_like(part) for part in parts]

    def step():
        torch.cuda.nccl.all_reduce(parts, sums)
        return sums[0][-JUDGED:]

    return step


@case
def copy_256m():
    """A copy of 256 MiB from GPU to GPU."""
    here = numbers(1, JUDGED).to("cuda:0").repeat(LARGE // JUDGED)
    there = torch.empty_like(here, device="cuda:1")

    def step():
        there.copy_(here, non_blocking=True)
        return there[-JUDGED:]

    return step


if __name__ == "__main__":
    main(torch.cuda.synchronize, BEGAN)
