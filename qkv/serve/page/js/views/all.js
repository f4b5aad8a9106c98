// The views, in the order of their tabs. Each has: id, title(model), fits(model, page), reads (whether it needs the input),
// mount(root, page) -> update(changed); `changed` is null the first time, then the names of what is new in the state.
import { attention } from "./attention.js";
import { embeddings } from "./embeddings.js";
import { lens } from "./lens.js";
import { positions } from "./positions.js";
import { reading } from "./read.js";
import { run } from "./run.js";
import { switches } from "./switches.js";
import { walk } from "./walk.js";
import { writing } from "./write.js";

export const views = [writing, reading, attention, walk, lens, switches, positions, embeddings, run];
