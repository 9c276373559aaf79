"""Logs of six public runs, cut to the facts that their threads state, in the words of the stacks that print them."""

from __future__ import annotations

from typing import NamedTuple


class PublicLog(NamedTuple):
    """A log, where it is from, what it does not say, and the model and a measurement that a reader finds in it."""

    stack: str
    source: str
    text: str
    given: tuple[str, ...]
    model: str
    measured: str


MEGATRON = PublicLog(
    "megatron",
    "github.com/fixstars/mdk: run_7B.sh and the log of 100 steps on 16 H100; 4,096 tokens follow from its TFLOP/s",
    """using world size: 16, data-parallel size: 16, tensor-model-parallel size: 1, pipeline-model-parallel size: 1
------------------------ arguments ------------------------
  ffn_hidden_size ................................. 10880
  fp16 ............................................ True
  fp8 ............................................. hybrid
  global_batch_size ............................... 1024
  group_query_attention ........................... False
  hidden_size ..................................... 4096
  micro_batch_size ................................ 2
  num_attention_heads ............................. 32
  num_experts ..................................... None
  num_layers ...................................... 30
  overlap_grad_reduce ............................. True
  padded_vocab_size ............................... 50304
  pipeline_model_parallel_size .................... 1
  recompute_granularity ........................... None
  seq_length ...................................... 4096
  sequence_parallel ............................... False
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 1
  untie_embeddings_and_output_weights ............. True
  use_distributed_optimizer ....................... True
  world_size ...................................... 16
-------------------- end of arguments ---------------------
 iteration 10/ 500000 | elapsed time per iteration (ms): 15210.6 | throughput per GPU (TFLOP/s/GPU): 748.3 |
 iteration 20/ 500000 | elapsed time per iteration (ms): 14351.0 | throughput per GPU (TFLOP/s/GPU): 793.1 |
[Rank 0] (after 20 iterations) memory (MB) | allocated: 42358.8 | max allocated: 70522.6 | reserved: 71202.0
 iteration 30/ 500000 | elapsed time per iteration (ms): 14197.6 | throughput per GPU (TFLOP/s/GPU): 801.7 |
 iteration 40/ 500000 | elapsed time per iteration (ms): 14099.7 | throughput per GPU (TFLOP/s/GPU): 807.3 |
""",
    ("accelerator=H100",),
    "mdk7b",
    "step time",
)
MODELS = (
    "model,num layers,hidden size,num attention heads,num query groups,ffn hidden size,vocab size,max sequence length,"
    "gated mlp,tied embeddings,attention type,source\n"
    'mdk7b,30,4096,32,32,10880,50304,4096,yes,no,MHA,"github.com/fixstars/mdk run_7B.sh"\n'
)
"""The model of mdk as a row of models: 6.44 billion parameters, which the log states as well."""

NEMO = PublicLog(
    "nemo",
    "NVIDIA-NeMo issue 14850, comment of 2 October 2025: Qwen3-30B-A3B on 16 H100, TP1 PP2 VP24 EP8, 26.xx s a step",
    """[NeMo I 2025-10-02 13:23:30 nemo_logging:393] MegatronStrategy: tensor_model_parallel_size=1, \
pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=24, expert_model_parallel_size=8, \
context_parallel_size=1, sequence_parallel=False
[NeMo I 2025-10-02 13:23:36 utils:662] Setting up optimizer with config OptimizerConfig(optimizer='adam', \
fp16=False, bf16=True, main_grads_dtype=torch.float32, use_distributed_optimizer=True, overlap_param_gather=True)
[NeMo I 2025-10-02 13:23:37 nemo_logging:393] Qwen3Config30B_A3B(num_layers=48, hidden_size=2048, \
num_moe_experts=128, seq_length=4096, recompute_granularity=None, tp_comm_overlap=False, enable_cuda_graph=False)
[NeMo I 2025-10-02 13:23:38 nemo_logging:393] Padded vocab_size: 151936, original vocab_size: 151936
Training epoch 0, iteration 29/99 | lr: 4.3e-06 | global_batch_size: 512 | global_step: 29 | \
train_step_timing in s: 26.5 | consumed_samples: 15360
Training epoch 0, iteration 30/99 | lr: 4.5e-06 | global_batch_size: 512 | global_step: 30 | \
train_step_timing in s: 26.4 | consumed_samples: 15872
""",
    ("accelerator=H100", "num accelerators=16", "micro batch size=1"),
    "Qwen3-30B-A3B",
    "step time",
)
TORCHTITAN = PublicLog(
    "torchtitan",
    "pytorch/torchtitan PR 1690: Qwen3-32B on 32 H100, FSDP 4 and TP 8, full recomputation, not compiled",
    """[rank0]:[titan] 2025-09-05 16:01:02,100 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 8]
[rank0]:[titan] 2025-09-05 16:01:05,310 - root - INFO - Model qwen3 32B size: 32,762,123,264 total parameters
[rank0]:[titan] 2025-09-05 16:01:06,020 - root - INFO - Applied Tensor Parallelism to the model
[rank0]:[titan] 2025-09-05 16:01:06,022 - root - INFO - Applied full activation checkpointing to the model
[rank0]:[titan] 2025-09-05 16:01:06,110 - root - INFO - Applied FSDP to the model
[rank0]:[titan] 2025-09-05 16:01:12,000 - root - INFO - Training starts at step 1, with local batch size 16, \
global batch size 64, sequence length 4096, total steps 1000 (warmup 600)
[trainer1|1]:[titan] 2025-09-05 16:03:11,935 - root - INFO - step: 20  loss:  8.0074  memory: 43.45GiB(45.73%)  \
tps: 876  tflops: 182.14  mfu: 18.42%
""",
    ("accelerator=H100",),
    "Qwen3-32B",
    "tokens per second per accelerator",
)
VLLM = PublicLog(
    "vllm",
    "vllm-project/vllm issue 20469: Qwen3-14B-AWQ by vLLM 0.9.1 on one A100 80GB, eager, one request at a time",
    """INFO [api_server.py:1287] vLLM API server version 0.9.1
INFO [cli_args.py:309] non-default args: {'model': 'Qwen/Qwen3-14B-AWQ', 'max_model_len': 16384, \
'enforce_eager': True, 'guided_decoding_backend': 'guidance', 'gpu_memory_utilization': 0.95, 'max_num_seqs': 30}
Maximum request concurrency: 1
============ Serving Benchmark Result ============
Successful requests:                     30
Total input tokens:                      480000
Total generated tokens:                  6000
Output token throughput (tok/s):         26.84
Median TTFT (ms):                        3452.00
Median TPOT (ms):                        20.94
""",
    ("accelerator=A100-SXM4-80GB",),
    "Qwen3-14B-AWQ",
    "tpot",
)
SGLANG = PublicLog(
    "sglang",
    "SemiAnalysisAI/InferenceX issue 870: DeepSeek-R1-0528 by SGLang 0.5.7 on 8 H200, 4 requests of 8k and 1k tokens",
    """[2026-03-05 20:11:02] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1-0528', tp_size=8, ep_size=1, \
quantization='fp8', disable_cuda_graph=False, disable_radix_cache=True)
[2026-03-05 20:16:40 TP0] Capture cuda graph end. Time elapsed: 21.30 s
benchmark_args=Namespace(backend='vllm', dataset_name='random', random_input_len=8192, random_output_len=1024, \
request_rate=inf, max_concurrency=4)
============ Serving Benchmark Result ============
Successful requests:                     40
Total input tokens:                      327680
Total generated tokens:                  40960
Mean TTFT (ms):                          474.30
Mean TPOT (ms):                          12.05
""",
    ("accelerator=H200",),
    "DeepSeek-R1",
    "tpot",
)
TRTLLM = PublicLog(
    "trtllm",
    "NVIDIA/TensorRT-LLM issue 6294: Llama-3.1-8B FP8 on one H100 PCIe, 30,000 requests of 128 and 128 tokens",
    """[07/24/2025-08:13:11] [TRT-LLM] [I] Creating CUDA graph instances for 14 batch sizes.
===========================================================
= PYTORCH BACKEND
===========================================================
Model:                  nvidia/Llama-3.1-8B-Instruct-FP8
TensorRT-LLM Version:   0.20.0
KV Cache Dtype:         None
Quantization:           FP8

===========================================================
= REQUEST DETAILS
===========================================================
Number of requests:             30000
Number of concurrent requests:  13299
Average Input Length (tokens):  128.0000
Average Output Length (tokens): 128.0000
===========================================================
= WORLD + RUNTIME INFORMATION
===========================================================
TP Size:                1
PP Size:                1
EP Size:                None
Max Runtime Batch Size: 4096
Max Runtime Tokens:     23552
KV Memory Percentage:   80.00%
===========================================================
= PERFORMANCE OVERVIEW
===========================================================
Request Throughput (req/sec):                     248.4751
Total Output Throughput (tokens/sec):             6957.3030
""",
    ("accelerator=H100-PCIe-80GB",),
    "Meta-Llama-3.1-8B",
    "tokens per second",
)
LOGS = (MEGATRON, NEMO, TORCHTITAN, VLLM, SGLANG, TRTLLM)
