// Properties of a model: its main task, which views apply, and a summary in words.

/** Main task of a model, the first that it supports: [ability, tab title, button]. */
const TASKS = [
  ["translate", "Translate", "Translate"],
  ["summarize", "Summarise", "Summarise"],
  ["describe", "Describe", "Describe"],
  ["answer", "Answer", "Answer"],
  ["tag", "Tag", "Tag"],
  ["fill", "Fill mask", "Fill mask"],
  ["classify", "Classify", "Classify"],
  ["chat", "Chat", "Send"],
  ["generate", "Generate", "Continue"],
];

export function mainTask(model) {
  const task = TASKS.find(([ability]) => model.can.includes(ability));
  if (!task) return null;
  const [ability, title, button] = task;
  const scoring = model.pairs ? "Compare" : "Score"; // regression
  return model.scores ? { ability, title: scoring, button: scoring } : { ability, title, button };
}

export const generatesText = (model) => ["translate", "summarize", "chat", "generate"].includes(mainTask(model)?.ability);
export const readsImages = (model) => model.image_size !== null;
export const canInspect = (model) => model.can.includes("look");
export const isEncoderDecoder = (model) => model.family === "encoder-decoder";
export const hasAttention = (model) => canInspect(model) && model.attention.length > 0;
/** Whether a layer computes softmax attention over tokens; cross-attention always does. */
export const hasSoftmaxAttention = (model) => hasAttention(model) && (model.mixer.includes("softmax") || isEncoderDecoder(model));
export const hasPositions = (model) => canInspect(model) && model.position !== "none" && !model.recurrent;
export const hasOutputHead = (model) => !["none", "pooled"].includes(model.head);
/** Whether it predicts a label or token at every input position (not one for the whole input, and not the next token). */
export const predictsPerToken = (model) => model.family === "encoder" && !/^(classes|pooled|none)/.test(model.head);
export const isEndToken = (model, { id }) => model.ends.includes(id);

export const maskToken = (model) => model.mask ?? "[MASK]";
/** Whether a text has a mask token; every model also accepts the two usual spellings. */
export const hasMask = (model, text) => [maskToken(model), "[MASK]", "<mask>"].some((mask) => text.includes(mask));

/** Second text of a model that reads pairs: {label, reason, action}; null for all others. */
export function secondInput(model) {
  if (!model.pairs) return null;
  return mainTask(model)?.ability === "answer"
    ? { label: "Question", reason: "This model answers questions about the context: ", action: "enter a question" }
    : { label: "Second text", reason: "This model reads two texts: ", action: "enter a second text" };
}

const LANGUAGES = {
  en: "English",
  de: "German",
  fr: "French",
  es: "Spanish",
  it: "Italian",
  nl: "Dutch",
  pt: "Portuguese",
  cs: "Czech",
  pl: "Polish",
  ru: "Russian",
  zh: "Chinese",
  ja: "Japanese",
};
export const languageName = (code) => LANGUAGES[code] ?? code ?? "";

export const ATTENTION_TYPES = {
  self: "Self-attention",
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
  cross: "Cross-attention: output to input",
};

const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

/** Summary of a model as parts {text, more}; `more` is hidden on small screens. */
export function summaryOf(model) {
  const count =
    model.parameters >= 1e9
      ? `${(model.parameters / 1e9).toFixed(1)} B`
      : model.parameters >= 1e6
        ? `${(model.parameters / 1e6).toFixed(1)} M`
        : `${Math.round(model.parameters / 1e3)} k`;
  const layers = model.decoder_layers ? `${model.layers} + ${model.decoder_layers} layers` : plural(model.layers, "layer");
  return [
    { text: model.recurrent ? `recurrent ${model.family}` : model.family },
    { text: hasAttention(model) && !model.recurrent ? `${layers} · ${plural(model.heads, "head")}` : layers, more: ` · d_model ${model.width}` },
    { text: count, more: " parameters" },
  ];
}
