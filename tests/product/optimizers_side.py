"""The side of test_optimizers.py that runs optimizers of other packages on least-squares problems, in float64:
optimizers_side.py MUON PROBLEMS CASES OUT. A matrix [i, o] is given to them as torch keeps weights, [o, i]."""
import importlib.util
import json
import sys

import numpy as np
import torch


def muon_of(file):
    """torch.optim._muon of a newer torch, beside this one's optimizers; its bf16 is float64"""
    import torch.optim.optimizer as base
    names = dict(_disable_dynamo_if_unsupported=lambda **_: lambda f: f, _params_doc="", _to_scalar=lambda x: x, ParamsT=object)
    for name, value in names.items():
        if not hasattr(base, name):
            setattr(base, name, value)
    spec = importlib.util.spec_from_file_location("torch.optim._muon", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.Tensor.bfloat16 = torch.Tensor.clone
    return module.Muon


def optimizer(name, w, args):
    if name == "muon":
        return muon_of(sys.argv[1])([w], **args)
    if name == "adafactor":
        from transformers.optimization import Adafactor
        return Adafactor([w], **args)
    import schedulefree
    return schedulefree.AdamWScheduleFree([w], **args)


def main():
    torch.set_default_dtype(torch.float64)
    problems, out = np.load(sys.argv[2]), {}
    for at, (name, args, steps) in enumerate(json.loads(sys.argv[3])):
        for key in {k[2:] for k in problems.files}:
            p, x, y = (torch.tensor(problems[f"{part}.{key}"].astype("f8")) for part in "pxy")
            w = torch.nn.Parameter(p.T.contiguous())
            use = optimizer(name, w, args)
            if hasattr(use, "train"):
                use.train()
            for _ in range(steps):
                use.zero_grad()
                (0.5 * (x @ w.T - y).square().sum()).backward()
                use.step()
            out[f"{at}.{key}"] = w.detach().T.numpy().copy()
            if hasattr(use, "eval"):
                use.eval()
                out[f"{at}.{key}.eval"] = w.detach().T.numpy().copy()
    np.savez(sys.argv[4], **out)


main()
