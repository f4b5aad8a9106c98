"""Memory of one worker under each way to divide training.

P parameters, d workers that share the rows, t that share the layers, p stages. State in float32 as qkv trains: 4 bytes each for the
parameter, its gradient and the two moments of Adam, 16 P in all (Rajbhandari et al. 2020, ZeRO, section 3.1 counts the same 16 for
float16 with a float32 copy). Sharding divides them by d (ZeRO-3, equation of section 5.3); tensor parallelism the matrices by t.
"""

from __future__ import annotations

from qkv.objectives import CHUNK
from qkv.plan.layout import Job, Layout

ITEMS = ("parameters", "gradients", "optimiser", "average", "gathered", "activations", "logits", "working")


def memory(job: Job, at: Layout) -> dict[str, float]:
    """Return the bytes of one worker at the peak of an update, by item; of a pipeline, those of its fullest stage."""
    shards = at.data if at.sharded else 1
    own = local_parameters(job, at) / shards
    return {
        "parameters": 4 * own,
        "gradients": 4 * own,
        "optimiser": 4 * job.states * own,
        "average": 4 * own * job.average,
        "gathered": gathered(job, at),
        "activations": activations(job, at),
        "logits": logits(job, at),
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


def gathered(job: Job, at: Layout) -> float:
    """Copies of parameters beside the stored ones.

    Sharded: the parameters outside the blocks for the whole pass, two blocks (one computes while the next is gathered) and the
    full gradient of one, in the precision of the products. Otherwise, in bfloat16, autocast's copies of all matrices.
    """
    if at.sharded:
        outside = job.network.parameters - job.network.inside
        return job.bytes * (outside + 3 * block_parameters(job, at))
    return 2 * local_parameters(job, at) if job.precision == "bfloat16" else 0


def kept_block(job: Job, at: Layout) -> float:
    """Activations of one block for the rows of a pass: split / t + the rest (Korthikanti et al. 2022, equation 2)."""
    n = job.network
    kept = (n.kept_split / at.tensor + n.kept - n.kept_split) / n.layers
    return at.rows * kept * job.bytes / 4


def activations(job: Job, at: Layout) -> float:
    """Activations that the backward pass needs.

    With checkpointing only the input of each block, and all of one block while it is computed again. A stage of a pipeline has at
    most p passes under way (1F1B, Narayanan et al. 2021, section 2.2).
    """
    n = job.network
    layers = n.layers / at.pipeline
    outside = at.rows * n.kept_outside * job.bytes / 4
    if at.recompute:
        each = layers * at.rows * n.stream * job.bytes
        return min(at.pipeline, at.passes) * each + kept_block(job, at) + outside
    return min(at.pipeline, at.passes) * layers * kept_block(job, at) + outside


def logits(job: Job, at: Layout) -> float:
    """Logits of a chunk of positions, and the gradient of the output matrix, in float32 (objectives.cross_entropy)."""
    n = job.network
    chunk = min(CHUNK, at.rows * n.tokens)
    return 4 * (chunk * n.vocabulary + n.output) / (at.tensor if at.pipeline > 1 else 1) if n.output else 0


def working(job: Job, at: Layout) -> float:
    """Gradients of the activations of the block whose backward pass is computed: as large as what it keeps."""
    return kept_block(job, at)
