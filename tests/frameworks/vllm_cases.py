"""vLLM: generation by a small Llama of random weights, with compiled graphs and paged attention.

vLLM starts a process of its own for the GPU, so that steps here wait for that one.
TEST_VLLM_ATTENTION names a back end of attention, such as TRITON_ATTN; without it
vLLM chooses.
"""

import json
import os
import tempfile
import time

BEGAN = time.perf_counter()

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# pylint: disable=wrong-import-position
import numpy
from common import case, main
from vllm import LLM, SamplingParams

# The model, as Hugging Face's configuration files describe it.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
# Prompts of a batch, and tokens that are generated for each.
PROMPTS, TOKENS = 32, 128


def generation(prompts, **options):
    """What generates tokens for that many prompts, always the same."""
    folder = tempfile.mkdtemp(prefix="paragpu-llama-")
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(LLAMA, file)
    attention = os.environ.get("TEST_VLLM_ATTENTION")
    if attention:
        options["attention_config"] = {"backend": attention}
    model = LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=64,
        gpu_memory_utilization=0.2,
        enable_prefix_caching=False,
        seed=0,
        **options,
    )
    texts = [{"prompt_token_ids": [(7 * i + 3 * j) % 31999 + 1 for j in range(16 + i)]} for i in range(prompts)]
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)

    def step():
        outputs = model.generate(texts, greedy, use_tqdm=False)
        return numpy.array([output.outputs[0].token_ids for output in outputs])

    return step


@case
def batch_generation():
    """128 tokens for each of 32 prompts."""
    return generation(PROMPTS)


@case
def single_generation_eager():
    """128 tokens for one prompt, without graphs and without torch.compile."""
    return generation(1, enforce_eager=True)


if __name__ == "__main__":
    # Each step waits for its result.
    main(lambda: None, BEGAN)
