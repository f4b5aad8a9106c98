// Texts to begin with: {text}, with a second one {pair} where the model reads two, and a {name} where the text is long.
import { gapOf, main } from "./models.js";

// sentences of the embedded grammar: a model trained by `qkv demo` knows their words
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
const OF_GRAMMAR = 2000; // a translator with fewer words than this has learned the grammar

// what one sees on photographs, which any other translator can say
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
const OF_LETTERS = 128; // tokens that a model must be able to read for one of these

const COMPARED = [
  { text: "A man is playing a guitar on the street.", pair: "A man plays the guitar outside." },
  { text: "The company raised its prices in May.", pair: "In May, prices were raised by the company." },
  { text: "Two children are running across a field.", pair: "A cat is asleep on the sofa." },
];
const ASKED = [
  { text: "The old teacher played against the child, and the child won.", pair: "Who won?" },
  { text: "The museum on Mill Street shows old ships. It is closed on Mondays.", pair: "When is the museum closed?" },
];
const REVIEWS = [
  "A wonderful film with a clever story.",
  "It was boring, and the actors were terrible.",
];
const BEGINNINGS = ["First Citizen:\nWe are", "ROMEO:\nBut, soft!"];
const CODE = ["def read(path):", "import os\n\n", "class Queue:"];
// what any model of the language may know
const NEUTRAL = ["The weather today is", "Once upon a time there was", "In the morning we"];
const SENTENCES = ["The weather is nice today.", "She reads a book in the garden.", "We met at the station."];

export function examples(model) {
  return textsFor(model, main(model)?.ability).map((one) => (typeof one === "string" ? { text: one } : one));
}

/** Texts of the model's own test set; else of the kind of its training data; else what is said everywhere. */
function textsFor(model, ability) {
  const { data = null, examples: own = [] } = model;
  if (own.length && !model.pairs) return own;
  const gap = gapOf(model);
  const grammar = data === null ? model.vocabulary < OF_GRAMMAR : data === "grammar";
  const translated = grammar ? GRAMMAR : SCENES;
  const reviews = /imdb|sst/i.test(data ?? "");
  switch (ability) {
    case "translate":
      return translated[model.source] ?? translated.en;
    case "summarize":
      return model.context < OF_LETTERS ? GRAMMAR.en : LETTERS;
    case "fill":
      if (grammar) return [`I ate an ${gap}.`, `She reads the ${gap} aloud in warm gardens.`];
      return reviews ? [`The movie was ${gap} and I loved every minute.`] : SENTENCES.map((one) => one.replace(/\w+\.$/, `${gap}.`));
    case "classify":
      if (model.pairs) return COMPARED;
      return reviews ? REVIEWS : grammar ? GRAMMAR.en : SENTENCES;
    case "answer":
      return ASKED;
    case "chat":
      return ["Hello! Who are you?", "Tell me a short story."];
    case "generate":
      if (/shakespeare/i.test(data ?? "")) return BEGINNINGS;
      if (data === "stdlib") return CODE;
      return grammar ? GRAMMAR.en : NEUTRAL;
    default:
      return grammar ? GRAMMAR.en : SENTENCES;
  }
}
