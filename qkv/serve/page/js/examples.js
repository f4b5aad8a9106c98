// Example inputs: {text}, a second text {pair} for models that read pairs, and a {name} for long texts.
import { mainTask, maskToken } from "./models.js";

// sentences of the embedded grammar, whose vocabulary the model of `qkv demo` has learned
const GRAMMAR = {
  en: [
    "I ate an apple.",
    "Did our man go to the garden?",
    "She reads the books aloud in warm gardens.",
    "We believe that my teacher should laugh.",
  ],
  de: [
    "Ich habe einen Apfel gegessen.",
    "Der Junge des Studenten holt mich am Abend ab.",
    "Ist unser Mann zum Garten gegangen?",
  ],
};
const GRAMMAR_VOCABULARY = 2000; // a smaller vocabulary means that the model was trained on the grammar

// captions of photographs, for any other translator
const SCENES = {
  en: [
    "A man in a blue shirt is standing on a ladder and cleaning a window.",
    "Two children are playing with a ball on the beach.",
    "A woman with a red hat is sitting on a bench and reading a book.",
  ],
  de: [
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Zwei Kinder spielen am Strand mit einem Ball.",
    "Eine Frau mit einem roten Hut sitzt auf einer Bank und liest ein Buch.",
  ],
  fr: [
    "Un homme en chemise bleue est debout sur une échelle et nettoie une fenêtre.",
    "Deux enfants jouent au ballon sur la plage.",
  ],
};

const LETTERS = [
  {
    name: "A meeting is moved",
    text:
      "Hi all, the meeting about the new gas contract has been moved from Tuesday to Thursday at 2 pm, because Susan is " +
      "travelling. We will be in the large conference room on the third floor. Please read the attached draft before then " +
      "and send me your comments by Wednesday. If you cannot come, let me know and I will set up a call. Thanks, Mark",
  },
  {
    name: "An invoice is wrong",
    text:
      "Dear John, I have looked at the invoice for October, and two of the items do not agree with our contract. The price " +
      "for storage is higher than we discussed, and the delivery on the 12th was never confirmed. Could you please check " +
      "both and send us a new invoice? We would like to pay before the end of the month. Best regards, Laura",
  },
];
const LETTER_TOKENS = 128; // context length required for these

const PAIRS = [
  { text: "A man is playing a guitar on the street.", pair: "A man plays the guitar outside." },
  { text: "The company raised its prices in May.", pair: "In May, prices were raised by the company." },
  { text: "Two children are running across a field.", pair: "A cat is asleep on the sofa." },
];
const QUESTIONS = [
  { text: "The old teacher played against the child, and the child won.", pair: "Who won?" },
  { text: "The museum on Mill Street shows old ships. It is closed on Mondays.", pair: "When is the museum closed?" },
];
const REVIEWS = [
  "A wonderful film with a clever story.",
  "It was boring, and the actors were terrible.",
];
const VERSES = ["First Citizen:\nWe are", "ROMEO:\nBut, soft!"];
const CODE = ["def read(path):", "import os\n\n", "class Queue:"];
// everyday English, for models of unknown training data
const NEUTRAL = ["The weather today is", "Once upon a time there was", "In the morning we"];
const SENTENCES = ["The weather is nice today.", "She reads a book in the garden.", "We met at the station."];

export function examplesFor(model) {
  return textsFor(model, mainTask(model)?.ability).map((item) => (typeof item === "string" ? { text: item } : item));
}

/** Texts from the model's test set, else similar to its training data, else everyday English. */
function textsFor(model, ability) {
  const { data = null, examples: test = [] } = model;
  if (test.length && !model.pairs) return test;
  const mask = maskToken(model);
  const grammar = data === null ? model.vocabulary < GRAMMAR_VOCABULARY : data === "grammar";
  const sentences = grammar ? GRAMMAR : SCENES;
  const reviews = /imdb|sst/i.test(data ?? "");
  switch (ability) {
    case "translate":
      return sentences[model.source] ?? sentences.en;
    case "summarize":
      return model.context < LETTER_TOKENS ? GRAMMAR.en : LETTERS;
    case "fill":
      if (grammar) return [`I ate an ${mask}.`, `She reads the ${mask} aloud in warm gardens.`];
      return reviews ? [`The movie was ${mask} and I loved every minute.`] : SENTENCES.map((text) => text.replace(/\w+\.$/, `${mask}.`));
    case "classify":
      if (model.pairs) return PAIRS;
      return reviews ? REVIEWS : grammar ? GRAMMAR.en : SENTENCES;
    case "answer":
      return QUESTIONS;
    case "chat":
      return ["Hello! Who are you?", "Tell me a short story."];
    case "generate":
      if (/shakespeare/i.test(data ?? "")) return VERSES;
      if (data === "stdlib") return CODE;
      return grammar ? GRAMMAR.en : NEUTRAL;
    default:
      return grammar ? GRAMMAR.en : SENTENCES;
  }
}
