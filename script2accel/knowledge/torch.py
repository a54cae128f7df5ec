"""What names of PyTorch and its neighbours mean: tables only. A name is the dotted path that an import gives it.

Source of the meanings: the API pages of torch 2.13 (`torch.optim`, `torch.utils.data`, `torch.nn`, `torch.cuda`, `torch.amp`,
`torch.distributed`), of torchvision, timm and transformers.
"""

from __future__ import annotations

import re

# constructors -> role -----------------------------------------------------------------------------------

OPTIMIZER = re.compile(
    r"^(torch\.optim\.__dict__\[\]|torch\.optim\.(?!lr_scheduler|swa_utils|Optimizer$)[A-Za-z_.]*[A-Z]\w*|torch_optimizer\.\w+"
    r"|bitsandbytes\.optim\.\w+"
    r"|transformers\.(optimization\.)?(AdamW|Adafactor)|timm\.optim\.(\w+\.)?create_optimizer\w*|timm\.optim\.[A-Z]\w+"
    r"|lion_pytorch\.Lion|apex\.optimizers\.\w+)$"
)
SCHEDULER = re.compile(
    r"^(torch\.optim\.lr_scheduler\.[A-Z]\w+|torch\.optim\.swa_utils\.SWALR|transformers\.(optimization\.)?get_\w*schedul\w*"
    r"|transformers\.get_scheduler|timm\.scheduler\.\w+)$"
)
LOADER = re.compile(
    r"^(torch\.utils\.data\.(dataloader\.)?DataLoader|torch_geometric\.(loader|data)\.\w*Loader|dgl\.dataloading\.\w*DataLoader"
    r"|torchdata\.stateful_dataloader\.StatefulDataLoader)$"
)
SAMPLER = re.compile(r"^torch\.utils\.data\.((sampler|distributed)\.)?\w*Sampler$")
DATASET = re.compile(
    r"^(torchvision\.datasets\.[A-Z]\w+|torch\.utils\.data\.(dataset\.)?(TensorDataset|Subset|ConcatDataset|Dataset|IterableDataset)"
    r"|datasets\.load_dataset|torchaudio\.datasets\.\w+)$"
)
LOSS_MODULE = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?\w*Loss(2d)?$|^torchvision\.ops\.\w*_loss$|^timm\.loss\.\w+$|^pytorch_metric_learning\.losses\.\w+$"
)
LOSS_FUNCTION = re.compile(
    r"^torch\.nn\.functional\.(\w*loss\w*|cross_entropy|binary_cross_entropy\w*|kl_div|nll_loss\w*)$|^torchvision\.ops\.\w*_loss$"
)
INDEXED_LOSS = re.compile(r"^torch\.nn\.((modules\.\w+\.)?(CrossEntropyLoss|NLLLoss|NLLLoss2d)|functional\.(cross_entropy|nll_loss|nll_loss2d))$")
"""Losses whose mean leaves ignored labels out and weighs classes: it divides by what counts in the batch."""
INDEXED_LOSS_ARGUMENTS = ("weight", "size_average", "ignore_index", "reduce", "reduction")  # in order, behind input and target of a function
BENDING = frozenset(
    {
        "sqrt",
        "rsqrt",
        "log",
        "log2",
        "log10",
        "log1p",
        "exp",
        "exp2",
        "expm1",
        "pow",
        "square",
        "reciprocal",
        "abs",
        "clamp",
        "clamp_min",
        "clamp_max",
    }
    | {"clip", "relu", "tanh", "sigmoid", "softplus", "elu", "leaky_relu", "gelu", "silu", "logsigmoid", "hardtanh", "sin", "cos", "sinh", "cosh"}
)
"""Functions and methods that aren't linear: of a mean over the batch they give another number than the mean of theirs over the ranks."""
BENDS = re.compile(rf"^torch\.(nn\.functional\.|special\.)?({'|'.join(sorted(BENDING))}|maximum|minimum)$")
JOINING = frozenset({"mean", "sum", "nanmean", "nansum"})
JOINS = re.compile(rf"^torch\.({'|'.join(sorted(JOINING))})$")
"""What takes the samples of a batch together, and stays linear."""
SPREADING = frozenset({"std", "var", "norm", "prod", "logsumexp", "median", "corrcoef", "cov"})
SPREADS = re.compile(rf"^torch\.(linalg\.(vector_|matrix_)?norm|{'|'.join(sorted(SPREADING))}|std_mean|var_mean|dist)$")
"""What takes them together and isn't linear."""
COSINE = re.compile(r"^torch\.(nn\.functional\.)?cosine_similarity$")
LOCATE = re.compile(r"^(pydoc\.locate|hydra\.utils\.get_(class|method|object))$")
"""What gives the class or function that a dotted path names."""
BY_CONFIG = re.compile(r"^hydra\.utils\.(instantiate|call)$")
"""What makes whatever a configuration names: its own name says nothing of what it gives."""
MODULE = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?(?!\w*Loss)(?!Parameter|init|functional|utils|parallel|Module$)[A-Z]\w+$"
    r"|^torchvision\.models\.(\w+\.)*[a-z]\w+$|^torchvision\.models\.(\w+\.)*[A-Z]\w+$"
    r"|^torchvision\.models\.(\w+\.)*__dict__\[\]$|^timm\.(models\.)?create_model$|^timm\.models\.\w+(\.\w+)*$"
    r"|^transformers\.(Auto)?\w*(Model|For[A-Z]\w+|LMHeadModel)(\.from_(pretrained|config))?$"
    r"|^segmentation_models_pytorch\.\w+$|^torch\.hub\.load$|^efficientnet_pytorch\.EfficientNet(\.from_(pretrained|name))?$|^pretrainedmodels\.\w+$"
)
MODULE_BASE = re.compile(
    r"^(torch\.nn\.(modules\.\w+\.)?[A-Z]\w*|torch\.jit\.ScriptModule|transformers\.\w*PreTrainedModel"
    r"|torchvision\.models\.(\w+\.)*[A-Z]\w+|timm\.models\.(\w+\.)*[A-Z]\w+|pytorch_lightning\.\w+)$"
)
DATASET_BASE = re.compile(r"^torch\.utils\.data\.(dataset\.)?(\w*Dataset)$|^torchvision\.datasets\.[A-Z]\w+$")
ITERABLE_DATASET_BASE = re.compile(r"^torch\.utils\.data\.(dataset\.)?(IterableDataset|IterDataPipe|ChainDataset)$")
FOREIGN_STREAM = re.compile(r"^(webdataset|wids)\.\w+$")
LOADER_BASE = LOADER
SAMPLER_BASE = SAMPLER
OPTIMIZER_BASE = re.compile(r"^torch\.optim\.(optimizer\.)?\w+$")
RELATIVE_SCHEDULERS = frozenset(
    {
        "StepLR", "MultiStepLR", "ExponentialLR", "LambdaLR", "MultiplicativeLR", "LinearLR", "ConstantLR", "PolynomialLR",
        "get_constant_schedule", "get_constant_schedule_with_warmup", "get_linear_schedule_with_warmup", "get_cosine_schedule_with_warmup",
    }
)  # fmt: skip
"""Schedulers of torch and transformers that multiply the optimizer's own rate."""
ABSOLUTE_RATES: dict[str, dict[str, int]] = {
    "OneCycleLR": {"max_lr": 1},
    "CyclicLR": {"base_lr": 1, "max_lr": 2},
    "CosineAnnealingLR": {"eta_min": 2},
    "CosineAnnealingWarmRestarts": {"eta_min": 3},
    "ReduceLROnPlateau": {"min_lr": 7},
}
"""Schedulers of torch that are given rates: parameter -> its position (https://docs.pytorch.org/docs/stable/optim.html)."""
SCHEDULER_BASE = re.compile(r"^torch\.optim\.lr_scheduler\.\w+$")
FUNCTION_BASE = re.compile(r"^torch\.autograd\.(function\.)?Function$")

SCALER = re.compile(r"^torch\.(cuda\.)?amp\.(grad_scaler\.)?GradScaler$")
AUTOCAST = re.compile(r"^torch\.((cuda\.|cpu\.)?amp\.)?(autocast_mode\.)?autocast$")
WRITER = re.compile(
    r"^(torch\.utils\.tensorboard|tensorboardX|tensorboard_logger)(\.\w+)*\.(SummaryWriter|Logger|FileWriter)$|^(wandb|trackio|swanlab)\.init$"
    r"|^comet_ml\.(\w+\.)?(Experiment|OfflineExperiment)$|^visdom\.Visdom$|^neptune\.init\w*$"
)
WRITER_MODULE = re.compile(
    r"^(wandb|mlflow|tensorboard_logger|comet_ml|neptune|swanlab|trackio)\.(init|log|log_\w+|config\.update|watch|finish|save|configure"
    r"|start_run|end_run|set_\w+|define_metric|log_value)$"
)
PROGRESS = re.compile(
    r"^tqdm(\.\w+)*\.(tqdm|trange|tqdm_notebook)$|^tqdm\.tqdm$|^tqdm\.auto\.tqdm$|^tqdm\.(trange|tqdm_notebook)$"
    r"|^progress\.bar\.\w*Bar$"
)
PROGRESS_ITERABLE = re.compile(r"^tqdm(\.\w+)*\.(tqdm|tqdm_notebook)$")
EMA = re.compile(r"^(torch\.optim\.swa_utils\.AveragedModel|timm\.utils\.ModelEma\w*|torch_ema\.\w+|ema_pytorch\.EMA)$")
DDP = re.compile(
    r"^(torch\.nn\.parallel\.(distributed\.)?DistributedDataParallel(CPU)?|apex\.parallel\.DistributedDataParallel"
    r"|torch\.distributed\.fsdp\.\w*FullyShardedDataParallel)$"
)
DATA_PARALLEL = re.compile(r"^torch\.nn\.(parallel\.(data_parallel\.)?)?(DataParallel|data_parallel)$")
HAND_WRAPPER = re.compile(
    r"^(torch\.nn\.(parallel\.(\w+\.)?)?DataParallel|torch\.nn\.parallel\.(distributed\.)?DistributedDataParallel(CPU)?|apex\.parallel\.DistributedDataParallel)$"
)
CHECKPOINT = re.compile(r"^torch\.utils\.checkpoint\.checkpoint$")
DISTRIBUTED_SAMPLER = re.compile(r"^torch\.utils\.data\.(distributed\.)?DistributedSampler$")
GROUP_CALL = re.compile(r"^torch\.distributed\.(distributed_c10d\.)?(\w+)$")
TAKES_RANK = re.compile(r"^torch\.distributed\.(distributed_c10d\.)?init_process_group$|^torch\.utils\.data\.(distributed\.)?DistributedSampler$")
SPAWN = re.compile(r"^torch\.multiprocessing\.(spawn\.)?spawn$")
LAUNCHER = re.compile(r"^accelerate\.(launchers\.)?notebook_launcher$")
DISTRIBUTED = re.compile(
    r"^torch\.distributed\.(?!checkpoint\.state_dict\.)(\w+\.)*\w+$|^torch\.multiprocessing\.(spawn|Process)$|^apex\.amp\.\w+$|^torch_xla\."
)

# what calls do ------------------------------------------------------------------------------------------

SAME = frozenset(
    {
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "float",
        "double",
        "half",
        "bfloat16",
        "requires_grad_",
        "share_memory",
        "apply",
        "type",
        "xpu",
        "npu",
        "mps",
    }
)
MOVES = frozenset({"to", "cuda"})
LIBRARY = re.compile(r"^(torch|numpy|itertools|glob|os|random|math|csv|json|pandas|collections|re|pathlib|string|copy|pickle)\.")
PARTS = frozenset(  # methods that give the parts of one thing, not batches
    {
        "chunk", "split", "unbind", "tolist", "items", "values", "keys", "permute", "view", "reshape", "unsqueeze", "squeeze", "t", "transpose",
        "flatten", "cpu", "numpy", "splitlines", "readlines", "rsplit", "iterrows", "itertuples", "rglob", "glob", "iterdir", "parameters",
        "named_parameters", "children", "modules", "named_modules", "state_dict", "range",
    }
)  # fmt: skip
TENSOR_FACTS = frozenset(
    {"shape", "device", "dtype", "ndim", "grad", "grad_fn", "is_cuda", "requires_grad", "layout", "is_leaf", "itemsize", "nbytes"}
)
TRANSPARENT = re.compile(
    r"^(torch\.compile|torch\.nn\.(parallel\.(\w+\.)?)?(DataParallel|DistributedDataParallel)"
    r"|torch\.nn\.SyncBatchNorm\.convert_sync_batchnorm|torch\.jit\.script"
    r"|torch\.nn\.utils\.(parametrizations\.)?(weight_norm|spectral_norm)|torch\.nn\.DataParallel|apex\.parallel\.\w+)$"
)
TAKES_PLAIN = re.compile(  # what copies, traces or exports a module: a wrapper would be copied, traced or exported with it
    r"^(copy\.(deep)?copy|torch\.jit\.(trace|trace_module|script)|torch\.onnx\.(dynamo_)?export|torch\.export\.export(_for_training)?"
    r"|torch\.fx\.symbolic_trace|torch\.ao\.quantization\.\w+|torch\.quantization\.\w+)$"
)
TRACED = re.compile(r"^torch\.jit\.(trace|trace_module|script|freeze)$")
PAST_AUTOGRAD = re.compile(  # gradients, or forward passes, that don't go through the wrapped model
    r"^torch\.autograd\.(grad|functional\.\w+)$|^torch\.func\.(functional_call|grad|grad_and_value|vjp|jvp|jacrev|jacfwd|hessian)$"
    r"|^torch\.nn\.utils\.stateless\.functional_call$|^functorch\.\w+$|^higher\.innerloop_ctx$"
)
BARE_LAYER = re.compile(  # layers without parameters
    r"^torch\.nn\.(modules\.\w+\.)?(\w*(ReLU6?|Dropout\w*|Pool\dd|Pad\dd|Loss)|Tanh|Sigmoid|Softmax\w*|LogSoftmax|GELU|SiLU|Mish|ELU|SELU|Hardtanh|Identity"
    r"|Flatten|Unflatten|Upsample|PixelShuffle|Softplus|LogSigmoid|CosineSimilarity|ChannelShuffle|Fold|Unfold)$"
)
GIVES_BACK = re.compile(r"^apex\.amp\.initialize$")
STATELESS = frozenset({"train", "eval", "zero_grad", "training", "gradient_checkpointing_enable", "to", "cuda", "module"})
"""Attributes of a module that tell or change nothing of its weights."""
LOADED = re.compile(r"^transformers\.(Auto)?\w*(Model|For[A-Z]\w+|LMHeadModel)\.from_pretrained$")
TOKEN_MODEL = re.compile(
    r"^transformers\.(Auto)?\w*(ForCausalLM|LMHeadModel|ForMaskedLM|ForTokenClassification|ForConditionalGeneration|ForSeq2SeqLM)(\.from_(pretrained|config))?$"
)
"""Models whose loss is the mean over the labels that aren't -100 (transformers, `loss/loss_utils.py`)."""
SHIFTS_LABELS = re.compile(r"ForCausalLM|LMHeadModel")
"""Of those, models that leave out the first label of each row."""
TOKEN_COLLATOR = re.compile(r"^transformers\.(data\.)?(data_collator\.)?DataCollatorFor(LanguageModeling|Seq2Seq|TokenClassification|WholeWordMask)$")
"""Collate functions that fill labels up with -100."""
EMPTIES = frozenset({"zero_", "detach_", "fill_"})  # methods of a gradient that make it new
OUT_OF_GRAPH = frozenset({"item", "detach", "cpu", "data", "tolist", "numpy"})
"""What is read of a tensor to be shown or kept, not trained by."""
SELF_ATTENTION = re.compile(
    r"^transformers\.(Auto|Llama|Mistral|Mixtral|Qwen[23]|Gemma[23]?|Phi3?|Olmo2?|StableLm|Cohere|Granite|SmolLM3)(Model)?ForCausalLM(\.from_(pretrained|config))?$"
)
"""Causal language models whose attention modules are named `self_attn` (of `Auto...` it is the loaded model that tells)."""
LOADED_WHOLE = re.compile(r"^transformers\.(Auto)?\w*(ForCausalLM|LMHeadModel)\.from_pretrained$")
"""Models whose weights all come from a file, so that nothing is drawn."""
MODEL_COUNTS = {"num_attention_heads": "heads", "n_head": "heads", "num_key_value_heads": "kv_heads"}
"""Keywords of a transformers config -> what `parallelism` asks of a model."""
CONTAINER = re.compile(r"^torch\.nn\.(modules\.container\.)?(ModuleList|Sequential)$")
REPEATING = {"TransformerEncoder": "TransformerEncoderLayer", "TransformerDecoder": "TransformerDecoderLayer"}
"""Modules of torch that repeat a layer, which they copy -> its class."""
ELEMENTWISE = re.compile(r"^torch\.optim\.(\w+\.)?(SGD|Adam|AdamW|Adamax|NAdam|RAdam|Adagrad|Adadelta|RMSprop|ASGD|Rprop)$")
"""Optimizers that treat each element of a parameter by itself, so that a shard of it is stepped as the whole would be."""
NO_GRAD = re.compile(r"^torch\.(autograd\.grad_mode\.|autograd\.)?(no_grad|inference_mode|set_grad_enabled)$")
CLIP_NORM = re.compile(r"^torch\.nn\.utils\.(clip_grad\.)?clip_grad_norm_?$")
CLIP_VALUE = re.compile(r"^torch\.nn\.utils\.(clip_grad\.)?clip_grad_value_$")
SEED = {
    "random.seed": "random",
    "numpy.random.seed": "numpy",
    "torch.manual_seed": "torch",
    "torch.random.manual_seed": "torch",
    "torch.cuda.manual_seed": "cuda",
    "torch.cuda.manual_seed_all": "cuda",
    "torch.cuda.random.manual_seed": "cuda",
}
RANDOM_FACTORY = re.compile(
    r"^torch\.(randn?|randint|randperm|normal|bernoulli|multinomial|rand_like|randn_like|randint_like|poisson"
    r"|distributions\.\w+(\.\w+)*)$|^(numpy\.random|random)\.(?!seed|RandomState|default_rng|getstate|setstate|get_state|set_state"
    r"|Random$)\w+$|^sklearn\.utils\.(shuffle|resample)$"
)
GENERATOR = re.compile(r"^(torch\.Generator|numpy\.random\.(RandomState|default_rng|Generator)|random\.Random)$")
DRAWING_METHODS = frozenset(  # of generators, and of tensors that fill themselves
    {
        "shuffle", "permutation", "permuted", "choice", "choices", "sample", "randint", "randrange", "integers", "random", "rand", "randn",
        "uniform", "normal", "random_", "uniform_", "normal_", "bernoulli_", "standard_normal", "random_sample", "betavariate", "gauss",
    }
)  # fmt: skip
DRAWN_IN_PLACE = frozenset({"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"})
INITIALISER = re.compile(r"^torch\.nn\.init\.\w+$")
LIKE = re.compile(r"^torch\.(zeros|ones|empty|full|rand|randn)_like$")
CPU_TENSOR = re.compile(
    r"^torch\.(zeros|ones|full|empty|rand|randn|randint|arange|linspace|eye|tensor|as_tensor|from_numpy|FloatTensor|LongTensor|Tensor|DoubleTensor|IntTensor|BoolTensor)$"
)
MAKES = re.compile(
    r"^torch\.(tensor|as_tensor|from_numpy|\w*Tensor|save|load|manual_seed)$"
)  # calls of torch that don't compute with what they're given
SAME_TENSOR = frozenset(
    {"T", "data", "float", "double", "long", "view", "reshape", "unsqueeze", "squeeze", "expand", "expand_as", "repeat", "t", "transpose", "permute"}
    | {"clone", "detach", "contiguous", "flatten"}
)
PARAMETER = re.compile(r"^torch\.nn\.(parameter\.)?Parameter$|^torch\.autograd\.Variable$")
CUDA_TENSOR_TYPE = re.compile(r"^torch\.cuda\.(Float|Double|Half|BFloat16|Byte|Char|Short|Int|Long|Bool)Tensor$")
TENSOR_DTYPE = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8",
    "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool",
}  # fmt: skip
CUDA_QUERY = re.compile(
    r"^torch\.(cuda|backends\.mps|accelerator|xpu|mps)\.(is_available|is_built|device_count|get_device_name|get_device_properties"
    r"|get_device_capability|current_device|get_arch_list|is_bf16_supported)$"
)
TOUCHES = re.compile(
    r"^(accelerate\.(\w+\.)?(Accelerator|PartialState|AcceleratorState)|transformers\.(\w+\.)*\w*TrainingArguments|torch\.cuda\.\w+)$"
)
"""What uses a device, or may: nothing of it may stand in front of a fork."""
ASKS_DRIVER = re.compile(r"^torch\.cuda\.is_available$")
"""Spoils a fork unless `NVML` is set in the environment (documented: `torch.cuda.is_available`)."""
NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
FORK_SAFE = re.compile(r"^torch\.cuda\.(is_available|device_count|is_initialized|manual_seed|manual_seed_all|empty_cache)$")
"""Of torch.cuda: what waits until a device is used, or asks NVML."""
CURRENT_DEVICE = re.compile(r"^torch\.(accelerator\.current_accelerator|get_default_device)$")
SET_DEVICE = re.compile(r"^torch\.(cuda|xpu|npu|accelerator)\.(set_device|set_device_index)$")
SET_DEFAULT = re.compile(r"^torch\.(set_default_device|set_default_tensor_type)$")

# side effects that one process must do -------------------------------------------------------------------

WRITES = re.compile(
    r"^(torchvision\.utils\.save_image|torchvision\.io\.(\w+\.)?write_\w+|matplotlib\.(pyplot\.(savefig|show|pause|imsave)|image\.imsave)"
    r"|numpy\.(save|savez|savez_compressed|savetxt)|imageio\.(v[23]\.)?(imwrite|imsave|mimsave|mimwrite)|cv2\.imwrite|skimage\.io\.imsave"
    r"|tifffile\.(imwrite|imsave)|torchaudio\.save|soundfile\.write|scipy\.io\.wavfile\.write|librosa\.output\.write_wav|nibabel\.save"
    r"|plotly\.io\.write_\w+|shutil\.make_archive|omegaconf\.OmegaConf\.save|(dill|cloudpickle|toml)\.dump|safetensors\.torch\.save_model"
    r"|scipy\.misc\.imsave|scipy\.io\.savemat|shutil\.(copy|copy2|copyfile|move|rmtree|copytree)|os\.(mkdir|remove|unlink|rename"
    r"|replace|rmdir|symlink)"
    r"|pickle\.dump|json\.dump|yaml\.dump|yaml\.safe_dump|joblib\.dump|torch\.onnx\.export|torch\.jit\.save"
    r"|safetensors\.torch\.save_file|subprocess\.(run|call|check_call|Popen)|os\.system)$"
)
WRITE_METHODS = frozenset(
    {
        "savefig",
        "to_csv",
        "to_json",
        "to_pickle",
        "write_text",
        "write_bytes",
        "mkdir",
        "save_pretrained",
        "push_to_hub",
        "unlink",
        "rename",
        "touch",
        "rmdir",
        "export_chrome_trace",
        "export_stacks",
        "export_memory_timeline",
        "to_excel",
        "to_parquet",
        "to_feather",
        "to_hdf",
        "to_html",
        "to_latex",
        "to_sql",
        "to_stata",
        "tofile",
        "write_html",
        "write_image",
        "write_json",
    }
)
SAVES = frozenset({"save", "dump", "to_file"})  # methods that write, of what libraries made (but for tensors and models)
OWN_SAVES = re.compile(r"^(torch|transformers|accelerate|deepspeed|peft|diffusers|pytorch_lightning|lightning|__main__)(\.|$)")
PRINTS = re.compile(
    r"^(sys\.(__)?stdout(__)?\.write|pprint\.(pprint|pp)|tqdm\.(\w+\.)*tqdm\.write|rich\.(print|pretty\.pprint)|click\.echo|termcolor\.cprint)$"
)
CONSOLE = re.compile(r"^rich\.(console\.Console|get_console)$")
LOG_FILES = re.compile(r"^(logging\.(FileHandler|basicConfig|handlers\.(Rotating|TimedRotating|Watched)FileHandler)|loguru\.logger\.add)$")
"""What opens a file for log lines: its first argument, or `filename` (of `basicConfig` only that)."""
OPENS = re.compile(r"^(io\.|gzip\.|bz2\.|lzma\.|codecs\.)?open$")
TENSOR_ANSWERS = frozenset(
    {"shape", "size", "dim", "ndim", "dtype", "numel", "view", "reshape", "unsqueeze", "squeeze", "expand", "repeat", "flatten", "permute"}
    | {"transpose", "contiguous", "float", "long", "half", "detach", "clone", "parameters", "state_dict"}
)
PATHS = re.compile(r"^pathlib\.\w*Path$")
WRITES_INTO = re.compile(  # what holds a file that it writes
    r"^(h5py\.File|zipfile\.ZipFile|tarfile\.(open|TarFile(\.open)?)|tables\.open_file|netCDF4\.Dataset|soundfile\.SoundFile)$"
)
ALWAYS_WRITES_INTO = re.compile(r"^(cv2\.VideoWriter|imageio\.(v[23]\.)?get_writer|pandas\.ExcelWriter|matplotlib\.backends\.backend_pdf\.PdfPages)$")
BACKWARD_ARGUMENTS = ("gradient", "retain_graph", "create_graph", "inputs")  # of Tensor.backward, in order
WRITER_METHODS = re.compile(
    r"^(add_\w+|log\w*|close|flush|write|watch|finish|update|define_metric|scalar_summary|image_summary|histo_summary|line|images?"
    r"|plot\w*)$"
)
DOWNLOADS = re.compile(r"^torchvision\.datasets\.[A-Z]\w+$")
FETCHES = re.compile(
    r"^(urllib\.request\.(urlopen|urlretrieve)|six\.moves\.urllib\.request\.(urlopen|urlretrieve)|requests\.get|wget\.download|gdown\.\w+"
    r"|torch\.hub\.download_url_to_file|torchvision\.datasets\.utils\.download_\w+|huggingface_hub\.(hf_hub_download|snapshot_download))$"
)

# nn.Module's own API: what a wrapped model answers as its inner one does ----------------------------------

MODULE_API = frozenset(
    {
        "train", "eval", "parameters", "zero_grad", "to", "cuda", "cpu", "half", "float", "double", "bfloat16", "requires_grad_", "apply", "forward",
        "training", "register_forward_hook", "register_full_backward_hook", "register_forward_pre_hook", "register_backward_hook", "buffers",
        "children", "share_memory", "type", "__class__", "__call__", "modules",
    }
)  # fmt: skip
MODULE_NAMED = frozenset(
    {
        "state_dict",
        "load_state_dict",
        "named_parameters",
        "named_modules",
        "named_buffers",
        "named_children",
        "get_parameter",
        "get_submodule",
        "get_buffer",
    }
)
BATCH_NORM = re.compile(r"^torch\.nn\.(modules\.\w+\.)?(BatchNorm[123]d|SyncBatchNorm|LazyBatchNorm[123]d)$")
RECURRENT = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?(RNN|LSTM|GRU|RNNBase|Transformer|TransformerEncoder|TransformerEncoderLayer|TransformerDecoder"
    r"|TransformerDecoderLayer|MultiheadAttention)(Cell)?$"
)
CLOCK = re.compile(r"^(time\.(time|perf_counter|monotonic|process_time|clock)|datetime\.datetime\.(now|utcnow|today)|timeit\.default_timer)$")
EXIT = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})
RANDOM_STATE = frozenset(
    {
        "torch.get_rng_state",
        "torch.random.get_rng_state",
        "torch.cuda.get_rng_state",
        "torch.cuda.get_rng_state_all",
        "torch.cuda.random.get_rng_state_all",
        "numpy.random.get_state",
        "random.getstate",
    }
)
RANDOM_STATE_SET = frozenset(path.replace("get_", "set_").replace("getstate", "setstate") for path in RANDOM_STATE)
"""What reads the state of a generator of random numbers, and what sets it."""
