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
  ["generate", "Write", "Write on"],
];

export function main(model) {
  const found = MAIN.find(([ability]) => model.can.includes(ability));
  return found ? { ability: found[0], title: found[1], button: found[2] } : null;
}

export const writes = (model) => ["translate", "summarize", "chat", "generate"].includes(main(model)?.ability);
export const sees = (model) => model.image_size !== null;
export const looks = (model) => model.can.includes("look");
export const bothSides = (model) => model.family === "encoder-decoder";
export const attends = (model) => looks(model) && model.attention.length > 0;
/** Whether a head of it may be walked through: softmax over the tokens, not a recurrence; cross-attention always is one. */
export const walks = (model) =>
  attends(model) && !model.recurrent && (model.mixer.includes("softmax") || bothSides(model));
/** How it writes a gap; a model that fills none has no name for it. */
export const gapOf = (model) => model.mask ?? "[MASK]";
/** Whether a token ends what is written. */
export const ends = (model, { id }) => model.ends.includes(id);
/** The second text that it reads: {label, example}; null where it reads one. An answer's question is always one. */
export function second(model) {
  if (main(model)?.ability === "answer") return { label: "Question", example: "Who won?" };
  return model.pairs ? { label: "Second text", example: "The film was great, and its story is clever." } : null;
}
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
  encoder: "Encoder: source looks at itself",
  decoder: "Decoder: what is written looks back",
  cross: "Cross: what is written looks at the source",
};

export function about(model) {
  const count =
    model.parameters >= 1e9
      ? `${(model.parameters / 1e9).toFixed(1)} B`
      : model.parameters >= 1e6
        ? `${(model.parameters / 1e6).toFixed(1)} M`
        : `${Math.round(model.parameters / 1e3)} k`;
  const layers = model.decoder_layers ? `${model.layers} + ${model.decoder_layers} layers` : `${model.layers} layers`;
  return [
    model.recurrent ? `recurrent ${model.family}` : model.family,
    layers,
    model.recurrent ? null : `${model.heads} heads`,
    `width ${model.width}`,
    `${count} parameters`,
  ]
    .filter(Boolean)
    .join(" · ");
}

// sentences of the embedded grammar: a model trained by `qkv demo` knows their words
const ENGLISH = [
  "I ate an apple.",
  "Did our man go to the garden?",
  "She reads the books aloud in warm gardens.",
  "We believe that my teacher should laugh.",
];
const GERMAN = [
  "Ich habe einen Apfel gegessen.",
  "Der Junge des Studenten holt mich am Abend ab.",
  "Ist unser Mann zum Garten gegangen?",
];

/** Texts to begin with. */
export function examples(model) {
  const gap = gapOf(model);
  switch (main(model)?.ability) {
    case "translate":
      return model.source === "de" ? GERMAN : ENGLISH;
    case "fill":
      return [`The movie was ${gap} and I loved every minute.`, `I ate an ${gap}.`];
    case "classify":
      return [
        "A wonderful film with a clever story.",
        "It was boring, and the actors were terrible.",
        "Did our man go to the garden?",
      ];
    case "tag":
      return ENGLISH;
    case "answer":
      return ["The old teacher played against the child, and the child won."];
    case "chat":
      return ["Hello! Who are you?", "Tell me a short story."];
    case "generate":
      return model.family === "decoder"
        ? ["First Citizen:\nWe are", "ROMEO:\nBut, soft!", "The old teacher", "I have seen the"]
        : ENGLISH;
    default:
      return ENGLISH;
  }
}
