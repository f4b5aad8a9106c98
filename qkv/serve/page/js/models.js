// What a model is and can do, in words.

/** The first thing to do with a model: [ability, title of its view, what the button says]. */
const MAIN = [
  ["translate", "Translate", "Translate"],
  ["summarize", "Summarise", "Summarise"],
  ["describe", "Describe", "Describe"],
  ["answer", "Answer", "Answer"],
  ["tag", "Tag", "Tag"],
  ["fill", "Fill", "Fill"],
  ["classify", "Classify", "Classify"],
  ["chat", "Chat", "Send"],
  ["generate", "Generate", "Continue"],
];

export function main(model) {
  const found = MAIN.find(([ability]) => model.can.includes(ability));
  if (!found) return null;
  const [ability, title, button] = found;
  const scoring = model.pairs ? "Compare" : "Score"; // a number is no class
  return model.scores ? { ability, title: scoring, button: scoring } : { ability, title, button };
}

export const writes = (model) => ["translate", "summarize", "chat", "generate"].includes(main(model)?.ability);
export const sees = (model) => model.image_size !== null;
export const looks = (model) => model.can.includes("look");
export const bothSides = (model) => model.family === "encoder-decoder";
export const attends = (model) => looks(model) && model.attention.length > 0;
/** Whether a head of it may be walked through: softmax over the tokens; cross-attention always is one. */
export const walks = (model) => attends(model) && (model.mixer.includes("softmax") || bothSides(model));
/** How it writes a gap; a model that fills none has no name for it. */
export const gapOf = (model) => model.mask ?? "[MASK]";
/** Whether a token ends what is written. */
export const ends = (model, { id }) => model.ends.includes(id);
/** The second text that it reads: its label, and how it is asked for; null where it reads one. */
export function second(model) {
  if (!model.pairs) return null;
  return main(model)?.ability === "answer"
    ? { label: "Question", why: "It answers questions about the text: ", wanted: "write a question" }
    : { label: "Second text", why: "This model reads two texts: ", wanted: "write a second text" };
}
/** Whether a text has a gap; any model knows both of the usual names. */
export const gapped = (model, text) => [gapOf(model), "[MASK]", "<mask>"].some((one) => text.includes(one));
export const ordered = (model) => looks(model) && model.position !== "none" && !model.recurrent;
export const answers = (model) => !["none", "pooled"].includes(model.head);
/** Whether it answers at every token that it reads, not about the whole, and not with what comes next. */
export const perToken = (model) => model.family === "encoder" && !/^(classes|pooled|none)/.test(model.head);

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
export const language = (code) => LANGUAGES[code] ?? code ?? "";

export const KINDS = {
  self: "Self-attention",
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
  cross: "Cross-attention: output to input",
};

const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

/** What it is, in parts: {text, more}, of which there is room for `more` on a desk alone. */
export function about(model) {
  const count =
    model.parameters >= 1e9
      ? `${(model.parameters / 1e9).toFixed(1)} B`
      : model.parameters >= 1e6
        ? `${(model.parameters / 1e6).toFixed(1)} M`
        : `${Math.round(model.parameters / 1e3)} k`;
  const layers = model.decoder_layers ? `${model.layers} + ${model.decoder_layers} layers` : counted(model.layers, "layer");
  return [
    { text: model.recurrent ? `recurrent ${model.family}` : model.family },
    { text: attends(model) && !model.recurrent ? `${layers} · ${counted(model.heads, "head")}` : layers, more: ` · width ${model.width}` },
    { text: count, more: " parameters" },
  ];
}
