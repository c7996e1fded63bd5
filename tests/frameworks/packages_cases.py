"""What people run on top of PyTorch: graph networks, Gaussian processes, differential equations, sound,
equivariant networks, vision and language models, and trainers."""

import time

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position,import-outside-toplevel
import common
from common import REPEATED, case, main, repeat_products

repeat_products()

import torch
from torch import nn

torch.use_deterministic_algorithms(REPEATED, warn_only=True)
DEVICE = "cuda"


def random(*shape, seed=5, dtype=torch.float32):
    """Numbers that depend on nothing but their shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(DEVICE)


def trained(model, loss_of):
    """A step that trains a model and returns the loss."""
    return common.trained(torch.optim.Adam(model.parameters(), lr=1e-3), loss_of)


@case
def graph_network():
    """torch-geometric: two layers of attention over a random graph."""
    from torch_geometric.nn import GATConv

    torch.manual_seed(1)
    nodes, edges = 2000, 12000
    graph = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    features = random(nodes, 32)
    layers = nn.ModuleList([GATConv(32, 16, heads=4), GATConv(64, 8)]).to(DEVICE)
    return trained(layers, lambda: layers[1](layers[0](features, graph).relu(), graph).square().mean())


@case
def gaussian_process():
    """GPyTorch: the marginal likelihood of an exact process, in double precision."""
    import gpytorch

    points = torch.linspace(0, 1, 300, dtype=torch.float64, device=DEVICE)
    values = torch.sin(points * 6.28) + random(300, dtype=torch.float64) * 0.1
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE, torch.float64)

    class Process(gpytorch.models.ExactGP):
        """A constant mean and a scaled kernel."""

        def __init__(self):
            super().__init__(points, values, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            """The prior at `x`."""
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Process().to(DEVICE, torch.float64).train()
    likelihood.train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return trained(model, lambda: -marginal(model(points), values))


@case
def bayesian_optimization():
    """BoTorch: the expected improvement of a fitted process."""
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.models import SingleTaskGP

    points = torch.rand(40, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(DEVICE)
    model = SingleTaskGP(points, (points.sin().sum(1, keepdim=True)))
    candidates = random(16, 2, 3, dtype=torch.float64).sigmoid()
    torch.manual_seed(6)
    improvement = qLogExpectedImprovement(model, best_f=1.0)
    return lambda: improvement(candidates).detach()


@case
def differential_equation():
    """torchdiffeq: an adaptive solver, whose steps depend on the results."""
    from torchdiffeq import odeint_adjoint

    torch.manual_seed(2)

    class Field(nn.Module):
        """A small network as the derivative."""

        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 4))

        def forward(self, _, state):
            """The derivative."""
            return self.layers(state)

    field, start, times = Field().to(DEVICE), random(128, 4), torch.linspace(0, 1, 5, device=DEVICE)
    return trained(field, lambda: odeint_adjoint(field, start, times)[-1].square().mean())


@case
def sound():
    """torchaudio: a mel spectrogram, its resampled input and an inverse."""
    import torchaudio

    wave = random(2, 32000)
    mel = torchaudio.transforms.MelSpectrogram(16000, n_fft=512, n_mels=64).to(DEVICE)
    resample = torchaudio.transforms.Resample(16000, 11025).to(DEVICE)
    return lambda: (mel(wave), resample(wave))


@case
def equivariant_network():
    """e3nn: a tensor product of spherical harmonics."""
    from e3nn import o3

    torch.manual_seed(3)
    product = o3.FullyConnectedTensorProduct("8x0e+8x1o", "1x0e+1x1o+1x2e", "8x0e+8x1o").to(DEVICE)
    features, directions = random(256, 32), random(256, 3, seed=8)

    def loss():
        harmonics = o3.spherical_harmonics("1x0e+1x1o+1x2e", directions, normalize=True)
        return product(features, harmonics).square().mean()

    return trained(product, loss)


@case
def vision_models():
    """timm: a vision transformer and a mobile network, without pretrained weights."""
    import timm

    torch.manual_seed(4)
    models = [timm.create_model(name, pretrained=False, num_classes=10).to(DEVICE).eval() for name in ("vit_tiny_patch16_224", "mobilenetv3_small_050")]
    images = random(2, 3, 224, 224)

    @torch.inference_mode()
    def step():
        return tuple(model(images) for model in models)

    return step


@case
def adapters():
    """PEFT: low-rank adapters of a small GPT-2 of transformers."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    config = GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    lora = LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(config), lora).to(DEVICE)
    words = torch.arange(4 * 32, device=DEVICE).reshape(4, 32) % 512
    return trained(model, lambda: model(input_ids=words, labels=words).loss)


@case
def encoder():
    """transformers: a BERT of random weights encodes sentences."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(6)
    config = BertConfig(vocab_size=512, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256)
    model = BertModel(config).to(DEVICE, torch.float16).eval()
    words = torch.arange(8 * 48, device=DEVICE).reshape(8, 48) % 512

    @torch.inference_mode()
    def step():
        return model(words).last_hidden_state

    return step


@case
def lightning_trainer():
    """Lightning: its trainer fits a regression with mixed precision."""
    import logging

    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Regression(lightning.LightningModule):
        """Two layers."""

        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

        def training_step(self, batch, _):
            """The squared error."""
            return (self.layers(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            """Plain descent."""
            return torch.optim.SGD(self.parameters(), lr=0.01)

    inputs = random(256, 16).cpu()
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=64)

    def step():
        torch.manual_seed(8)
        model = Regression()
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        lightning.Trainer(accelerator="gpu", devices=1, max_epochs=2, precision="16-mixed", **quiet).fit(model, data)
        return tuple(parameter.detach() for parameter in model.parameters())

    return step


@case
def accelerated_loop():
    """Accelerate: a training loop with gradient accumulation in bf16."""
    from accelerate import Accelerator

    torch.manual_seed(9)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    inputs = random(64, 32)

    def step():
        for _ in range(2):
            with accelerator.accumulate(model):
                loss = model(inputs).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return loss.detach()

    return step


@case
def sparse_and_special():
    """Sparse products, special functions, decompositions, and tensors in pinned memory."""
    matrix = random(300, 300, dtype=torch.float64)
    symmetric = matrix @ matrix.T + 300 * torch.eye(300, device=DEVICE, dtype=torch.float64)
    thin = (matrix * (matrix > 1)).to_sparse_csr()
    pinned = torch.arange(1 << 16, dtype=torch.float32).pin_memory()

    def step():
        moved = pinned.to(DEVICE, non_blocking=True)
        back = torch.empty_like(pinned, pin_memory=True)
        back.copy_(moved.lgamma(), non_blocking=True)
        torch.cuda.synchronize()
        special = torch.special.erfcx(matrix), torch.special.i0e(matrix), torch.digamma(matrix.abs() + 1)
        return (thin @ matrix, torch.linalg.cholesky(symmetric), torch.linalg.eigvalsh(symmetric), back, *special)

    return step


@case
def memory_tools():
    """Memory statistics, a private pool, a pluggable stream, and graphs that share a pool."""
    first, second = random(1 << 16), random(1 << 16, seed=6)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        (first * second).sum()
    torch.cuda.current_stream().wait_stream(stream)
    graphs, outputs, pool = [], [], torch.cuda.graph_pool_handle()
    for scale in (1.0, 2.0):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs.append((first * scale + second).cumsum(0))
        graphs.append(graph)

    def step():
        torch.cuda.reset_peak_memory_stats()
        for graph in graphs:
            graph.replay()
        free, total = torch.cuda.mem_get_info()
        if not 0 < free <= total or torch.cuda.memory_allocated() <= 0:
            raise RuntimeError("memory does not add up")
        return tuple(output.clone() for output in outputs)

    return step


if __name__ == "__main__":
    main(torch.cuda.synchronize, BEGAN)
