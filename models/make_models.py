#!/usr/bin/env python3
"""Makes every model in this folder: NAME.txtpb, NAME.pb and, where it has weights, NAME/weights.safetensors.

    pip install -r models/requirements.txt && python3 models/make_models.py

protoc (protobuf-compiler) turns the text into the binary. The same versions on the same kind of
processor give the same files.
"""

import pathlib
import subprocess

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = pathlib.Path(__file__).resolve().parent
HEADER = "# proto-file: proto/model.proto\n# proto-message: microengine.Model\n"


def write_model(name, text, weights=None):
    """Writes the text, its binary form, and the weights (name -> fp32 array)."""
    (HERE / f"{name}.txtpb").write_text(HEADER + text)
    binary = subprocess.run(
        ["protoc", "--deterministic_output", "--encode=microengine.Model", "-I", HERE.parent / "proto", "model.proto"],
        input=text.encode(), stdout=subprocess.PIPE, check=True).stdout
    (HERE / f"{name}.pb").write_bytes(binary)
    if weights:
        (HERE / name).mkdir(exist_ok=True)
        save_file({k: np.ascontiguousarray(v, np.float32) for k, v in weights.items()},
                  HERE / name / "weights.safetensors")


def weight(model, name, array):
    dims = ", ".join(map(str, array.shape))
    return (f'  weights {{ name: "{name}" dtype: F32 dims: [{dims}] '
            f'external {{ file: "{model}/weights.safetensors" }} }}\n')


def dims(*sizes):
    return "[" + ", ".join(f'{{symbol: "{s}"}}' if isinstance(s, str) else f"{{size: {s}}}" for s in sizes) + "]"


def layer(rng, inputs, outputs):
    """A layer that keeps the variance of its inputs: weight [inputs, outputs] and bias."""
    return (rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32), \
        (0.1 * rng.standard_normal(outputs)).astype(np.float32)


def linear_relu():
    w, b = layer(np.random.default_rng(1), 128, 96)
    write_model("linear_relu", f"""\
# One GEMM with fused bias and ReLU: y = relu(x·weight + bias).
format_version: 1
producer: "models/make_models.py"
graph {{
  name: "linear_relu"
  inputs {{ name: "x" dtype: F32 dims: {dims(8, 128)} }}
{weight("linear_relu", "weight", w)}{weight("linear_relu", "bias", b)}\
  nodes {{ name: "layer" inputs: ["x", "weight", "bias"] outputs: "y" linear {{ activation: RELU }} }}
  outputs {{ name: "y" dtype: F32 dims: {dims(8, 96)} }}
}}
""", {"weight": w, "bias": b})


def attention():
    write_model("attention", f"""\
# Streaming causal attention with grouped heads: eight query heads share two key and value heads.
format_version: 1
producer: "models/make_models.py"
graph {{
  name: "attention"
  inputs {{ name: "q" dtype: F32 dims: {dims(1, 8, 256, 64)} }}
  inputs {{ name: "k" dtype: F32 dims: {dims(1, 2, 256, 64)} }}
  inputs {{ name: "v" dtype: F32 dims: {dims(1, 2, 256, 64)} }}
  nodes {{ name: "attend" inputs: ["q", "k", "v"] outputs: "o" attention {{ causal: true }} }}
  outputs {{ name: "o" dtype: F32 dims: {dims(1, 8, 256, 64)} }}
}}
""")


def softmax():
    write_model("softmax", f"""\
# Softmax over the last axis.
format_version: 1
producer: "models/make_models.py"
graph {{
  name: "softmax"
  inputs {{ name: "x" dtype: F32 dims: {dims(64, 1000)} }}
  nodes {{ name: "normalize" inputs: "x" outputs: "y" softmax {{}} }}
  outputs {{ name: "y" dtype: F32 dims: {dims(64, 1000)} }}
}}
""")


def check_chain(w, b):
    """Computes chain in FP64 on random input: every stage has to have something to say."""
    x = np.random.default_rng(3).standard_normal((2, 128, 256))
    qkv = np.maximum(x @ w.astype(np.float64) + b, 0)
    q, k, v = qkv.reshape(2, 128, 3, 4, 64).transpose(2, 0, 3, 1, 4)
    scores = np.where(np.tri(128, dtype=bool), q @ k.swapaxes(2, 3) / 8, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    logits = (p @ v).transpose(0, 2, 1, 3).reshape(2, 128, 256)
    y = np.exp(logits - logits.max(axis=-1, keepdims=True))
    y /= y.sum(axis=-1, keepdims=True)
    active = np.mean(qkv > 0)
    uneven = np.mean(p[:, :, -1].max(axis=-1)) * 128  # 1 where attention is a plain average
    print(f"chain: {100 * active:.0f} % of ReLU's outputs are positive, the strongest of 128 keys weighs {uneven:.1f} "
          f"times the average, y is {256 * y.min():.2f} to {256 * y.max():.1f} times 1/256")
    assert 0.3 < active < 0.7 and uneven > 1.5 and 256 * y.max() > 2 and np.allclose(y.sum(axis=-1), 1)


def chain():
    w, b = layer(np.random.default_rng(2), 256, 768)
    check_chain(w, b)

    def head(name, index):
        """The views that read q, k or v in place out of the fused product."""
        return f"""\
  nodes {{ name: "{name}_slice" inputs: "fused" outputs: "{name}_part" slice {{ axis: 2 start: {index} end: {index + 1} }} }}
  nodes {{ name: "{name}_drop" inputs: "{name}_part" outputs: "{name}_rows" reshape {{ dims: {dims(2, 128, 4, 64)} }} }}
  nodes {{ name: "{name}_heads" inputs: "{name}_rows" outputs: "{name}" transpose {{ permutation: [0, 2, 1, 3] }} }}
"""

    write_model("chain", f"""\
# A GEMM + bias + ReLU layer, streaming causal attention, then softmax, as one graph. The layer makes
# queries, keys and values in one product; views hand them to attention without a copy.
format_version: 1
producer: "models/make_models.py"
graph {{
  name: "chain"
  inputs {{ name: "x" dtype: F32 dims: {dims(2, 128, 256)} }}
{weight("chain", "qkv_weight", w)}{weight("chain", "qkv_bias", b)}\
  nodes {{ name: "layer" inputs: ["x", "qkv_weight", "qkv_bias"] outputs: "qkv" linear {{ activation: RELU }} }}
  nodes {{ name: "split" inputs: "qkv" outputs: "fused" reshape {{ dims: {dims(2, 128, 3, 4, 64)} }} }}
{head("q", 0)}{head("k", 1)}{head("v", 2)}\
  nodes {{ name: "attend" inputs: ["q", "k", "v"] outputs: "o" attention {{ causal: true }} }}
  nodes {{ name: "turn" inputs: "o" outputs: "o_rows" transpose {{ permutation: [0, 2, 1, 3] }} }}
  nodes {{ name: "join" inputs: "o_rows" outputs: "logits" reshape {{ dims: {dims(2, 128, 256)} }} }}
  nodes {{ name: "normalize" inputs: "logits" outputs: "y" softmax {{}} }}
  outputs {{ name: "y" dtype: F32 dims: {dims(2, 128, 256)} }}
}}
""", {"qkv_weight": w, "qkv_bias": b})


def digits_answers(images, weights):
    """The network in float64 throughout: [images, 10] probabilities."""
    h = images.astype(np.float64)
    for i in (1, 2, 3):
        h = h @ weights[f"weight{i}"].astype(np.float64) + weights[f"bias{i}"].astype(np.float64)
        if i < 3:
            h = np.maximum(h, 0)
    e = np.exp(h - h.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def digits():
    """A trained classifier, and the 400 images that training has not seen."""
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32)  # [1797, 64], ink from 0 to 16
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=400, random_state=0, stratify=labels)
    mlp = MLPClassifier((128, 64), activation="relu", alpha=1e-2, learning_rate_init=2e-3, max_iter=400, random_state=0)
    mlp.fit(train_x / 16, train_y)
    weights = {}
    for i, (w, b) in enumerate(zip(mlp.coefs_, mlp.intercepts_), start=1):
        # The first layer takes the images as they are, ink from 0 to 16.
        weights[f"weight{i}"] = (w / 16 if i == 1 else w).astype(np.float32)
        weights[f"bias{i}"] = b.astype(np.float32)

    probability = digits_answers(test_x, weights)
    accuracy = np.mean(probability.argmax(axis=1) == test_y)
    print(f"digits: {100 * accuracy:.2f} % of {len(test_y)} images kept aside")
    assert accuracy >= 0.97

    (HERE / "digits").mkdir(exist_ok=True)
    np.save(HERE / "digits" / "test_images.npy", test_x)
    np.save(HERE / "digits" / "test_labels.npy", test_y.astype(np.int64))
    np.save(HERE / "digits" / "test_answers.npy", probability)
    declared = "".join(weight("digits", name, array) for name, array in weights.items())
    write_model("digits", f"""\
# A trained MLP that recognises handwritten digits: 8×8 images in, with ink from 0 to 16, and the
# probability of each digit out. See README.md for the data.
format_version: 1
producer: "models/make_models.py"
graph {{
  name: "digits"
  inputs {{ name: "image" dtype: F32 dims: {dims("batch", 64)} }}
{declared}\
  nodes {{ name: "layer1" inputs: ["image", "weight1", "bias1"] outputs: "h1" linear {{ activation: RELU }} }}
  nodes {{ name: "layer2" inputs: ["h1", "weight2", "bias2"] outputs: "h2" linear {{ activation: RELU }} }}
  nodes {{ name: "layer3" inputs: ["h2", "weight3", "bias3"] outputs: "logits" linear {{}} }}
  nodes {{ name: "normalize" inputs: "logits" outputs: "probability" softmax {{}} }}
  outputs {{ name: "probability" dtype: F32 dims: {dims("batch", 10)} }}
}}
""", weights)


if __name__ == "__main__":
    linear_relu()
    attention()
    softmax()
    chain()
    digits()
