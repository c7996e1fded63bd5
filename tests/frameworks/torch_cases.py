"""PyTorch, torchvision, transformers and Triton: training, inference, graphs, compilation."""

import time

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position,import-outside-toplevel
import common
from common import REPEATED, case, main, repeat_products

repeat_products()

import torch
from torch import nn
from torch.nn import functional

# PyTorch fills each new tensor then.
torch.use_deterministic_algorithms(REPEATED, warn_only=True)
DEVICE = "cuda"
WIDTH, LAYERS, HEADS, WORDS, LENGTH = 1024, 12, 16, 4096, 256


class Block(nn.Module):
    """A transformer's layer: attention and two products."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        """Causal attention, then the two products."""
        batch, length, width = x.shape
        parts = self.project(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Gpt(nn.Module):
    """A language model without a tokenizer."""

    def __init__(self, layers=LAYERS, width=WIDTH, heads=HEADS):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens):
        """The logits of each next word."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model_of(kind, *arguments, dtype=torch.bfloat16):
    """A model with weights that depend on nothing but its shape."""
    torch.manual_seed(7)
    with torch.device(DEVICE):
        return kind(*arguments).to(dtype)


def trained(model, batch, loss_of):
    """A step that trains and returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return common.trained(optimizer, lambda: loss_of(model, batch))


def tokens(batch, length):
    """Words that depend on nothing."""
    generator = torch.Generator().manual_seed(11)
    return torch.randint(WORDS, (batch, length), generator=generator).to(DEVICE)


def next_word_loss(model, batch):
    """The loss of predicting each next word."""
    logits = model(batch[:, :-1]).float()
    return functional.cross_entropy(logits.reshape(-1, WORDS), batch[:, 1:].reshape(-1))


@case
def gpt_training_step():
    """12 layers of width 1024 in bf16, eight texts of 256 words."""
    return trained(model_of(Gpt), tokens(8, LENGTH), next_word_loss)


@case
def resnet50_training_step():
    """torchvision's ResNet-50, channels last, autocast to bf16."""
    from torchvision.models import resnet50

    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, REPEATED
    model = model_of(resnet50, dtype=torch.float32).to(memory_format=torch.channels_last)
    images = torch.randn(32, 3, 224, 224, generator=torch.Generator().manual_seed(5))
    images = images.to(DEVICE, memory_format=torch.channels_last)
    labels = torch.arange(32, device=DEVICE)

    def loss_of(model, batch):
        with torch.autocast("cuda", torch.bfloat16):
            return functional.cross_entropy(model(batch), labels)

    return trained(model, images, loss_of)


def decoder(model, item):
    """Appends the likeliest word to a text of 64 words, over and over."""
    text = tokens(1, 64)

    def step():
        nonlocal text
        with torch.inference_mode():
            word = model(text)[:, -1:].argmax(-1)
            text = torch.cat((text[:, 1:], word), 1)
            return torch.tensor(word.item()) if item else word

    return step


@case
def eager_decode():
    """Batch 1, nothing is waited for."""
    return decoder(model_of(Gpt).eval(), False)


@case
def eager_decode_item():
    """Batch 1, each word is read back."""
    return decoder(model_of(Gpt).eval(), True)


@case
def graph_decode():
    """The same by a captured graph."""
    model, text = model_of(Gpt).eval(), tokens(1, 64)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def once():
        with torch.inference_mode():
            word = model(text)[:, -1:].argmax(-1)
            text.copy_(torch.cat((text[:, 1:], word), 1))
            return word

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        once()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        word = once()

    def step():
        graph.replay()
        return word.clone()

    return step


@case
def compiled_training_step():
    """torch.compile of a small model: Triton's kernels."""
    model = model_of(Gpt, 2, 256, 4)
    return trained(torch.compile(model), tokens(8, 128), next_word_loss)


@case
def scaled_training_step():
    """fp16 with a gradient scaler and pinned batches from worker processes."""
    model = model_of(nn.Sequential, nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10), dtype=torch.float32)
    data = torch.utils.data.TensorDataset(torch.arange(4096 * 256).reshape(4096, 256) % 97 / 97.0, torch.arange(4096) % 10)
    loader = torch.utils.data.DataLoader(data, batch_size=64, num_workers=2, pin_memory=True)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-2), torch.amp.GradScaler("cuda")
    batches = iter(loader)

    def step():
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        images, labels = (part.to(DEVICE, non_blocking=True) for part in batch)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


@case
def transformers_generation():
    """Hugging Face's Llama with random weights writes sixteen words."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4
    )
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    prompt = torch.arange(1, 33, device=DEVICE)[None]
    mask = torch.ones_like(prompt)
    return lambda: model.generate(prompt, attention_mask=mask, max_new_tokens=16, do_sample=False, pad_token_id=0)


@case
def large_sums():
    """Sums of 8 GiB that were computed before: memory, and little else."""
    torch.manual_seed(9)
    numbers = torch.empty(8192, 1 << 18, device=DEVICE).uniform_()
    return lambda: numbers.add_(1.0).sum(1)


@case
def triton_attention():
    """Fused attention as Triton's kernels, of 2048 words."""
    import triton_kernels

    torch.manual_seed(1)
    query, key, value = (torch.randn(4, 8, 2048, 64, device=DEVICE, dtype=torch.float16) for _ in range(3))
    return lambda: triton_kernels.attention(query, key, value)


@case
def triton_softmax_of_product():
    """A product and a softmax as Triton's kernels."""
    import triton_kernels

    torch.manual_seed(2)
    left, right = (torch.randn(1024, 1024, device=DEVICE, dtype=torch.float16) for _ in range(2))
    return lambda: triton_kernels.softmax(triton_kernels.product(left, right))


@case
def streams_and_events():
    """Work on four streams that wait for each other."""
    torch.manual_seed(4)
    parts = [torch.randn(512, 512, device=DEVICE) for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in parts]
    torch.cuda.synchronize()

    def step():
        results, events = [], []
        for part, stream in zip(parts, streams):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append((part @ part).sort()[0])
                events.append(stream.record_event())
        for event in events:
            torch.cuda.current_stream().wait_event(event)
        return sum(results)

    return step


if __name__ == "__main__":
    main(torch.cuda.synchronize, BEGAN)
