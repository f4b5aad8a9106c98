// All views, in the order of their tabs. Each has id, title(model), supports(model, page), usesInput (whether it shows the input
// fields) and mount(root, page) -> update(changed); `changed` is null at first, then the set of state names that have changed.
import { ablation } from "./ablation.js";
import { attention } from "./attention.js";
import { embeddings } from "./embeddings.js";
import { generation } from "./generation.js";
import { head } from "./head.js";
import { lens } from "./lens.js";
import { positions } from "./positions.js";
import { prediction } from "./prediction.js";
import { training } from "./training.js";

export const views = [generation, prediction, attention, head, lens, ablation, positions, embeddings, training];

/** Former ids of views, still accepted in links. */
export const OLD_IDS = { write: "generate", read: "predict", walk: "head", off: "ablation", run: "training" };
