"""Memory of one worker under each way to divide training.

P parameters, d workers that share the rows, t that share the layers, p stages. State in float32 as qkv trains: 4 bytes each for the
parameter, its gradient and the two moments of Adam, 16 P in all (Rajbhandari et al. 2020, ZeRO, section 3.1 counts the same 16 for
float16 with a float32 copy). Sharding divides them by d (ZeRO-3, equation of section 5.3); tensor parallelism the matrices by t.
"""

from __future__ import annotations

from qkv.objectives import CHUNK
from qkv.plan.job import Job
from qkv.plan.layout import Layout


def memory(job: Job, at: Layout) -> dict[str, float]:
    """Return the bytes of one worker at the peak of an update, by item; of a pipeline, those of its fullest stage."""
    shards = at.data if at.sharded else 1
    own = local_parameters(job, at) / shards
    return {
        "parameters": 4 * own,
        "gradients": gradients(job, at, own),
        "optimiser": 4 * job.states * own,
        "average": 4 * own * job.average,
        "gathered": gathered_copies(job, at),
        "activations": activations(job, at),
        "working": working(job, at),
    }


def local_parameters(job: Job, at: Layout) -> float:
    """Parameters of one worker before sharding: split / (t p) + (inside - split) / p + outside.

    Embeddings and head are on the first and last stage of a pipeline, divided by t as in Megatron-LM (Shoeybi et al. 2019, section 3).
    """
    n = job.network
    outside = n.parameters - n.inside
    blocks = (n.split / at.tensor + n.inside - n.split) / at.pipeline
    return blocks + (outside / at.tensor if at.pipeline > 1 else outside)


def block_parameters(job: Job, at: Layout) -> float:
    """Parameters of the largest block on one worker, gathered."""
    n = job.network
    return n.largest * (n.split / at.tensor + n.inside - n.split) / max(n.inside, 1)


def gathered_copies(job: Job, at: Layout) -> float:
    """Copies of parameters besides the stored ones, and their gradients before these are scattered.

    FSDP2: parameters outside the blocks stay gathered, in float32; of the blocks, the one being computed and, if it is sharded, the
    next one, in the precision of the products, and the full gradient of one, in float32. Otherwise, in bfloat16, autocast's copies
    of all matrices.
    """
    if at.fsdp:
        outside = job.network.parameters - job.network.inside
        return 4 * outside + ((1 + at.sharded) * job.bytes + 4) * block_parameters(job, at)
    return 2 * local_parameters(job, at) if job.precision == "bfloat16" else 0


def kept_block(job: Job, at: Layout) -> float:
    """Activations of one block for the rows of a pass: split / t + the rest (Korthikanti et al. 2022, equation 2)."""
    n = job.network
    kept = (n.kept_split / at.tensor + n.kept - n.kept_split) / n.layers
    return at.rows * kept * job.bytes / 4


def activations(job: Job, at: Layout) -> float:
    """Activations that the backward pass needs.

    With checkpointing only the input of each block, and all activations of the block being recomputed. A stage of a pipeline has at
    most p passes under way (1F1B, Narayanan et al. 2021, section 2.2).
    """
    n = job.network
    layers = n.layers / at.pipeline
    outside = at.rows * n.kept_outside * job.bytes / 4
    if at.recompute:
        each = layers * at.rows * n.stream * job.bytes
        return min(at.pipeline, at.passes) * each + kept_block(job, at) + outside
    return min(at.pipeline, at.passes) * layers * kept_block(job, at) + outside


def gradients(job: Job, at: Layout, own: float) -> float:
    """Gradients of `own` parameters at the peak, which is where the backward pass begins.

    DistributedDataParallel keeps them in its buckets, and several passes accumulate in them; with FSDP2 they then stay unsharded until
    the last pass reduces and scatters them, block by block. Otherwise they are created while the backward pass frees the activations,
    and only what exceeds the activations adds to the peak.
    """
    if at.passes > 1:
        return 4 * local_parameters(job, at)
    if at.data > 1 and not at.fsdp:
        return 4 * own
    return max(4 * own - activations(job, at), 0)


def working(job: Job, at: Layout) -> float:
    """Temporary memory of one step: the logits of a chunk of positions and the gradient of the output matrix in float32
    (objectives.cross_entropy), or the gradients of the activations of one block, as large as these."""
    n = job.network
    chunk = min(CHUNK, at.rows * n.tokens)
    loss = 4 * (chunk * n.vocabulary + n.output) / (at.tensor if at.pipeline > 1 else 1) if n.output else 0
    return max(loss, kept_block(job, at))
