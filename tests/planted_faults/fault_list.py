"""The faults: what is made wrong, and what has to be said of it."""

import dataclasses


@dataclasses.dataclass
class Fault:
    name: str
    kind: str  # "optimizer", "model"; "": nothing is wrong
    wrong: dict  # of the reference (trainer.py, hf_models.py)
    says: object = ""  # a regular expression, or one by what is stored
    ours: tuple = ()  # of our configuration
    models: tuple = ("gpt2", "llama", "qwen3", "mixtral")
    stored: tuple = ("all", "gradients", "losses")

    def is_for(self, model, stored):
        return model in self.models and stored in self.stored

    def says_of(self, stored):
        return self.says if isinstance(self.says, str) else self.says.get(stored, self.says[""])


def optimizer(name, wrong, says, **more):
    return Fault(name, "optimizer", wrong, says, **more)


def ours(name, change, says, **more):
    """Ours is the odd one: the configuration says so."""
    changes = (change,) if isinstance(change, str) else change
    return Fault(name, "optimizer", {}, says, ours=tuple("optimizer_config." + c for c in changes), **more)


def model(name, wrong, says, models, **more):
    return Fault(name, "model", wrong, says, models=models, **more)


ROPE = ("llama", "qwen3", "mixtral")
GPT2 = ("gpt2",)
ALL = ("gpt2", "llama", "qwen3", "mixtral")

OPTIMIZER = [
    optimizer("decay_all", {"decay_how": "all"}, "every tensor decayed"),
    optimizer("decay_none", {"decay_how": "none"}, "no tensor decayed"),
    optimizer("decay_norms_too", {"decay_how": "norms_too"}, "(norms decayed|every tensor decayed)"),
    optimizer("decay_biases_too", {"decay_how": "biases_too"}, "biases decayed", models=GPT2),
    optimizer("decay_not_embeddings", {"decay_how": "not_embeddings"}, "embeddings did not decay"),
    optimizer("coupled", {"kind": "adam"}, "Adam, not AdamW"),
    optimizer("decay_without_lr", {"decay_without_lr": True}, "not multiplied by the learning rate"),
    optimizer("decay_triple", {"weight_decay": 0.3}, "weight_decay were (0.3|3 times)"),
    optimizer("decay_0.01", {"weight_decay": 0.01}, "weight_decay were (0.01|0.1 times)"),
    optimizer("betas_swapped", {"beta1": 0.95, "beta2": 0.9}, "betas were swapped"),
    optimizer("beta1_0.8", {"beta1": 0.8}, "beta1 were 0.8"),
    optimizer("beta1_0.87", {"beta1": 0.87}, "beta1 were 0.87"),
    optimizer("beta2_0.999", {"beta2": 0.999}, "beta2 were 0.999"),
    optimizer("beta2_0.97", {"beta2": 0.97}, "beta2 were 0.97"),
    optimizer("eps_1e-6", {"eps": 1e-6}, "eps were 1e-06"),
    optimizer("eps_3e-4", {"eps": 3e-4}, "eps were 0.0003"),
    optimizer("eps_inside", {"eps_where": "inside"}, "(under|inside) the root"),
    optimizer("no_correction", {"no_correction": "both"}, "bias were not corrected"),
    optimizer("no_first_correction", {"no_correction": "first"}, "first moment were not corrected"),
    optimizer("no_second_correction", {"no_correction": "second"}, "second moment were not corrected"),
    optimizer("amsgrad", {"amsgrad": True}, "AMSGrad"),
    optimizer("nesterov", {"nesterov": True}, "Nesterov"),
    optimizer("lr_double", {"lr_factor": 2.0}, "learning rate were (2 times|0.02)"),
    optimizer("lr_1.3", {"lr_factor": 1.3}, "learning rate were 1.3 times"),
    optimizer("lr_tenth", {"lr_factor": 0.1}, "learning rate were 0.1 times"),
    optimizer("no_warmup", {"warmup": 0}, "no warm-up"),
    optimizer("warmup_from_zero", {"warmup_from_zero": True}, "(one step behind|began at (a rate of )?0)"),
    optimizer("warmup_begins_at_half", {"warmup_begin": 5e-3}, "warm-up began at"),
    optimizer("warmup_6", {"warmup": 6}, "warm-up (of|took) 6 steps"),
    optimizer("schedule_ahead", {"schedule_shift": 1}, "one step ahead"),
    optimizer("schedule_behind", {"schedule_shift": -1}, "one step behind"),
    optimizer("linear", {"style": "linear"}, "linear"),
    optimizer("constant", {"style": "constant"}, "(constant|stayed)"),
    optimizer("decay_iters_20", {"decay_iters": 20}, "lr_decay_iters were 20"),
    optimizer("min_lr_0", {"min_lr": 0.0}, "min_lr were 0"),
    optimizer("clip_off", {"clip_how": "off"}, "clipping were off"),
    optimizer("clip_0.5", {"clip": 0.5}, "clipped at (norm )?0.5"),
    optimizer("clip_0.3", {"clip": 0.3}, "clipped at (norm )?0.3"),
    optimizer("clip_value", {"clip_how": "value", "clip": 0.04}, "each element were clipped"),
    optimizer("clip_each", {"clip_how": "each"}, "each tensor's norm were clipped"),
    optimizer("gradients_summed", {"gradient_factor": 2.0}, "(summed over|not averaged)"),
    optimizer("gradients_halved", {"gradient_factor": 0.5}, "0.5 times"),
    optimizer("loss_scale_left", {"gradient_factor": 1024.0}, "(1024 times|loss scale)"),
    optimizer("embedding_left_out", {"left_out": ("embed_tokens", "wte")}, "embedding",
              models=("gpt2", "llama", "mixtral")),
    optimizer("norms_left_out", {"left_out": ("norm", "ln_")}, "norm"),
    optimizer("layer_left_out", {"left_out": ("layers.1.", "h.1.")}, r"layers?[. ]1"),
    optimizer("head_left_out", {"left_out": ("lm_head",)}, "(head|output)", models=("llama", "mixtral")),
    optimizer("embedding_lr_tenth", {"lr_of": {"embed_tokens": 0.1, "wte": 0.1}}, "embedding",
              models=("gpt2", "llama", "mixtral")),
    optimizer("embedding_lr_3", {"lr_of": {"embed_tokens": 3.0, "wte": 3.0}}, "embedding"),
    optimizer("sgd", {"kind": "sgd", "momentum": 0.0, "lr_factor": 1.0}, "SGD"),
    optimizer("sgd_momentum", {"kind": "sgd", "momentum": 0.9}, "SGD"),
    optimizer("lion", {"kind": "lion"}, "Lion"),
]

OURS = [
    ours("ours_no_warmup", "lr_warmup_iters=0", "warm-up"),
    ours("ours_no_clip", "clip_grad=0", "clipped at norm 1"),
    ours("ours_clip_0.4", "clip_grad=0.4", "clipped at (norm )?1"),
    ours("ours_no_decay", "weight_decay=0", "weight_decay were 0.1"),
    ours("ours_adam", "optimizer_type=Adam", "AdamW, not Adam"),
    ours("ours_beta2", "betas=[0.9,0.98]", "beta2 were 0.95"),
    ours("ours_eps", "eps=1e-3", "eps were 1e-08"),
    ours("ours_warmup_from_zero", "lr_warmup_init=0", "(one step ahead|began at)"),
    ours("ours_lr", "learning_rate=0.004", "(learning rate were 2.5 times|learning_rate were 0.01)"),
    ours("ours_warmup_5", "lr_warmup_iters=5", "warm-up (of|took) 2 steps"),
    ours("ours_constant", "lr_decay_style=constant", "(cosine|linear)"),
    ours("ours_sgd", ("optimizer_type=SGD", "momentum=0.9"), "AdamW"),
    ours("ours_lion", ("optimizer_type=Lion", "betas=[0.9,0.95]"), "AdamW"),
    Fault("lion_beta", "optimizer", {"kind": "lion", "beta2": 0.99}, "beta2 were 0.99|betas=",
          ours=("optimizer_config.optimizer_type=Lion", "optimizer_config.betas=[0.9,0.95]")),
    Fault("sgd_no_momentum", "optimizer", {"kind": "sgd", "momentum": 0.0}, "momentum",
          ours=("optimizer_config.optimizer_type=SGD", "optimizer_config.momentum=0.9")),
    Fault("sgd_nesterov", "optimizer", {"kind": "sgd", "momentum": 0.9, "nesterov": True}, "esterov",
          ours=("optimizer_config.optimizer_type=SGD", "optimizer_config.momentum=0.9")),
]

MODEL = [
    model("rope_base", {"rope_base": 500000.0}, r"(rotary_base|rope)", ROPE),
    model("rope_interleaved", {"rope_interleaved": True}, r"(interleaved|rope|attention)", ROPE),
    model("no_rope", {"no_rope": True}, r"(position_embedding_type|rope|attention)", ROPE),
    model("norm_eps", {"norm_eps": 1e-3}, r"norm_epsilon", ALL),
    model("no_scale", {"no_scale": True}, r"(scal|attention)", ALL),
    model("erf_gelu", {"activation": "gelu"}, r"hidden_act|mlp", ALL),
    model("relu", {"activation": "relu"}, r"hidden_act|mlp", ALL),
    model("no_causal_mask", {"no_causal_mask": True}, r"(mask|attention)", ALL),
    model("no_residual", {"no_residual": True}, r"(residual|layers\.0)", ALL),
    model("gate_swapped", {"gate_swapped": True}, r"mlp", ("llama", "qwen3")),
    model("no_final_norm", {"no_final_norm": True}, r"final_norm", ALL),
    model("embedding_scaled", {"embedding_scaled": True}, r"embedding", ROPE),
    model("positions_reversed", {"positions_reversed": True}, r"embedding", GPT2),
    model("head_untied", {"head_untied": True}, r"(untie|tied|embedding|lm_head)", ("gpt2", "qwen3")),
    model("top_k_not_normalised", {"top_k_not_normalised": True}, r"(norm_topk_prob|pre_softmax|router)",
          ("mixtral",)),
    model("gqa_order", {"gqa_order": True}, r"attention", ROPE),
    model("labels_shifted", {"labels_shifted": True}, r"(label|shift)", ALL),
    model("wrong_mean", {"mean_of_all_rows": True}, r"(mean|tokens|times)", ALL),
    model("gradient_of_one_lost", {"gradient_lost": ("layers.0.mlp.down_proj", "h.0.mlp.c_proj.weight",
                                                     "layers.0.self_attn.v_proj")},
          r"layers\.0\.(mlp|attention|self_attn)", ALL, stored=("all", "gradients")),
]

FAULTS = [Fault("clean", "", {})] + OPTIMIZER + OURS + MODEL
