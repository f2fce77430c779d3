"""Masked diffusion on the prose of the running Python: the run of ``make demo``.

Command: dlm train --config=configs/masked_demo.py --workdir=runs/masked_demo
"""

from ml_collections import ConfigDict
from ml_collections import config_dict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "seed": 0,
            "data": {
                "path": config_dict.placeholder(str),
                "tokenizer": "unigram",
                "vocab_size": 2048,
                "length": 128,
                "overlap": 32,
                "validation_fraction": 0.05,
            },
            "model": {
                "width": 128,
                "layers": 4,
                "heads": 4,
                "max_length": 256,
            },
            "process": {
                "name": "masked",
                "schedule": "linear",
                # A short run with small batches learns faster under a capped weight; the reported
                # validation bound is the exact one all the same.
                "weighting": "capped",
                "weight_limit": 4.0,
            },
            "times": {"sampler": "antithetic"},
            "optimizer": {
                "learning_rate": 2e-3,
                "warmup_steps": 50,
                "decay": "cosine",
                "weight_decay": 0.01,
            },
            "training": {
                "steps": 1500,
                "batch_size": 16,
                "ema_decay": 0.99,
                "log_every": 10,
                "checkpoint_every": 500,
            },
            "evaluation": {"every": 500, "rows": 64, "samples": 2},
            "sampling": {"order": "ancestral", "steps": 64, "length": 128, "temperature": 0.9},
        }
    )
