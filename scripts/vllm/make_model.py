"""Creates a chat model of random weights that vLLM can serve, without downloads.

The folder gets a Llama- or Qwen2-shaped model and a byte-level tokenizer, trained here on generated
English, with a chat template that knows tools. The answers are random words, but to a client
the model behaves like a chat model:

- only whole ASCII tokens are sampled, so that every chunk of a stream decodes to text at once;
- the end has a fixed chance at each step, so that answers stop by themselves after about
  ``--mean-output`` tokens.

Both come from one channel of the residual stream that always holds a constant: the output matrix
reads it as a bias for each token, which these architectures otherwise lack.

Runs in vLLM's environment, which brings torch, transformers and tokenizers. A model of realistic
size, for a GPU::

    python make_model.py MODEL --arch llama --layers 32 --hidden 4096 --head-dim 128 --kv-heads 8 \
        --intermediate 14336 --vocab-size 128256 --device cuda
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
"""Never sent to the client."""
MARKERS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
"""One token each, sent as text."""
LEARNED = 4096
"""Tokens that the tokenizer learns. A model's further tokens are never sampled."""

CHAT_TEMPLATE = """\
{%- set ns = namespace(first=0, system="You are a helpful assistant.") -%}
{%- if messages and messages[0].role == "system" -%}
  {%- set ns.first = 1 -%}{%- set ns.system = messages[0].content -%}
{%- endif -%}
{{- "<|im_start|>system\\n" + ns.system -}}
{%- if tools -%}
  {{- "\\n\\nYou may call these tools:\\n" -}}
  {%- for tool in tools -%}{{- tool | tojson + "\\n" -}}{%- endfor -%}
  {{- 'To call one, answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>' -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages[ns.first:] -%}
  {%- if message.role == "tool" -%}
    {{- "<|im_start|>user\\n<tool_response>\\n" + message.content -}}
    {{- "\\n</tool_response><|im_end|>\\n" -}}
  {%- else -%}
    {{- "<|im_start|>" + message.role + "\\n" + (message.content or "") -}}
    {%- for call in message.tool_calls or [] -%}
      {{- "\\n<tool_call>" -}}
      {{- {"name": call.function.name, "arguments": call.function.arguments} | tojson -}}
      {{- "</tool_call>" -}}
    {%- endfor -%}
    {{- "<|im_end|>\\n" -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""

STEMS = """
answer ask bake book bring call change clean close cook count cover cross deliver drink eat finish
fold greet grill help invite keep laugh learn listen look mix move offer open order pack park pass
pay plan play pour reach read repeat reserve rest return ring roast save season seat serve share
show sing sit slice smell speak stay stir suggest switch table taste thank turn visit wait walk
warm wash watch wish wonder work write apple bottle bowl bread bridge butter candle cellar chair
cheese corner dish door evening fish flower garden glass guest harbour kitchen lamp lemon market
menu morning music oven pepper plate river room salt soup spoon street summer terrace ticket
window winter
"""
ENDINGS = ["", "s", "ed", "ing", "er", "ers", "able", "ment", "less", "ful", "ly"]
SMALL = """
the a an of to in on at by for from with into over under after before and or but if then when
while who which that this these it he she they we you i not never always often soon again here
there more most some any each both many much one two three four five six seven eight nine ten
first last good new old long short early late high low large quick slow dark cold red green blue
white is are was were be has have had do does did can could will would should may might must
"""
PATTERNS = [
    "The {n} {v} the {n} {p} the {n}.",
    "{D}, the {j} {n} {v} {p} a {j} {n}.",
    "When the {n} is {j}, we {v} it and {v} the {n}.",
    "How can I {v} the {n} {p} my {n}?",
    "Please {v} each {n} before the {n} {v}.",
    "It was {j}: {d} {n} and {d} {n} {v} {p} the {n}.",
    '{{"{n}": "{j}", "{n}": {i}, "{n}": [{i}, {i}]}}',
]


def english(sentences: int, seed: int) -> Iterator[str]:
    """Generate English-like lines, with enough different words for some thousand merges."""
    rng = random.Random(seed)
    words = [stem + ending for stem in STEMS.split() for ending in ENDINGS]
    small = SMALL.split()

    class Slots(dict[str, str]):
        def __missing__(self, key: str) -> str:
            if key == "i":
                return str(rng.randrange(10 ** rng.randrange(1, 5)))
            if key in "dD":
                word = rng.choice(small)
                return word.capitalize() if key == "D" else word
            return rng.choice(small if rng.random() < 0.15 else words)

    for _ in range(sentences):
        near = rng.choice(["into", "over", "with", "near"])
        yield rng.choice(PATTERNS).replace("{p}", near).format_map(Slots())


def make_tokenizer(out: Path, max_len: int, seed: int) -> Tokenizer:
    """Train a tokenizer and save it; it covers all 256 bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNED - len(MARKERS),
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(english(60_000, seed), trainer)
    tokenizer.add_tokens(MARKERS)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_len,
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "unk_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return tokenizer


def sampleable(tokenizer: Tokenizer) -> torch.Tensor:
    """Select the tokens that decode to printable ASCII by themselves."""
    keep = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.bool)
    for token in range(len(keep)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        keep[token] = text.isascii() and (text.isprintable() or text in ("\n", "\t"))
    for word in SPECIAL + MARKERS:
        keep[tokenizer.token_to_id(word)] = False
    return keep


@torch.no_grad()
def shape_weights(
    model: torch.nn.Module, keep: torch.Tensor, end: int, spread: float, mean_output: float
) -> None:
    """Make channel 0 a constant, and use it as an output bias; see the module's docstring."""
    core, head = model.model, model.lm_head.weight
    width = head.shape[1]
    core.embed_tokens.weight.normal_(0, 1)
    core.embed_tokens.weight[:, 0] = math.sqrt(width)
    for layer in core.layers:  # no layer may write to it
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.down_proj.weight[0] = 0
    probe = torch.randint(0, len(keep), (8, 64), device=head.device)
    unit = core(probe).last_hidden_state[..., 0].mean().item()  # its value after the last norm
    head.normal_(0, spread / math.sqrt(width))  # logits have this standard deviation
    head[:, 0] = -60.0 / unit  # never sampled
    head[: len(keep)][keep.to(head.device), 0] = 0.0  # but for these
    head[end] = 0.0
    total = int(keep.sum()) * math.exp(spread**2 / 2)
    head[end, 0] = math.log(total / mean_output) / unit  # ends with chance 1 / mean_output


def main() -> None:
    """Create the model of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="the folder")
    parser.add_argument("--arch", choices=["qwen2", "llama"], default="qwen2")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--intermediate", type=int, help="default 3 x hidden")
    parser.add_argument("--vocab-size", type=int, default=LEARNED)
    parser.add_argument("--max-len", type=int, default=32768)
    parser.add_argument("--spread", type=float, default=2.0, help="of the logits")
    parser.add_argument("--mean-output", type=float, default=150, help="tokens of an answer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer(args.out, args.max_len, args.seed)
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[args.arch]
    config = config_class(
        vocab_size=-(-max(args.vocab_size, tokenizer.get_vocab_size()) // 64) * 64,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate or 3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // args.head_dim,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=args.max_len,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    torch.set_default_dtype(torch.float32 if args.device == "cpu" else torch.bfloat16)
    with torch.device(args.device):
        model = model_class(config).eval()
    shape_weights(model, sampleable(tokenizer), end, args.spread, args.mean_output)
    model.generation_config.update(
        do_sample=True, temperature=1.0, eos_token_id=[end, pad], pad_token_id=pad
    )
    model.to(torch.bfloat16).save_pretrained(args.out)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{args.out}: {args.arch}, {parameters / 1e6:.2f} M parameters of random weights")


if __name__ == "__main__":
    main()
