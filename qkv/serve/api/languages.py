"""Names of languages, and language detection by script and common words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish",
    "fr": "French", "ga": "Irish", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch",
    "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak",
    "sl": "Slovenian", "sr": "Serbian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
COMMON = {
    "cs": "a se na je že to v s z do jsem jako ale pro jsou by který když nebo už tak ve po si",
    "da": "og i at det er en til på de som med for den af der ikke jeg har et men var vi han hun du",
    "de": "der die das und ist in ein eine zu den nicht von mit sich auf für dem ich er sie es wir auch als an hat im",
    "en": "the of and to a in is that it was he for on are with as his they at be this have from i she we you not an",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más pero sus le yo ella",
    "fi": "ja on ei se että oli hän en mutta ovat minä niin kun kuin tai jos sen mitä myös ole tämä sitä",
    "fr": "de la le et les des en un une du que est pour qui dans a par plus pas au sur ne se ce il elle je nous vous",
    "hu": "a az és hogy nem is egy van de ez volt meg csak már mint ha azt el én még sem vagy kell ki",
    "it": "di e il la che in un a per è una sono con non del si da come al le dei nel alla ma io lei gli",
    "nl": "de en van het een in is dat op te zijn met voor niet aan er om ook als maar ik hij zij wij je bij",
    "no": "og i det er en til på som med for at den av ikke de jeg har et men var vi han hun du seg",
    "pl": "i w na z się nie do to że jest o jak ale po co za od tak jego przez już tylko był czy",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas ao ele ela eu",
    "ro": "și în de la a cu pe nu un o este care din mai să sunt pentru că ce au fost dar el ea",
    "sv": "och i att det som en på är av för med den till inte om ett har de jag men var vi han hon du",
    "tr": "ve bir bu da de için ile çok ne o ben daha gibi en var mi değil ama sonra her olan kadar",
}
WORDS = {code: frozenset(words.split()) for code, words in COMMON.items()}
SCRIPTS = {
    "GREEK": ("el",), "CYRILLIC": ("ru", "uk", "bg", "sr"), "ARABIC": ("ar", "fa", "ur"), "HEBREW": ("he",),
    "HIRAGANA": ("ja",), "KATAKANA": ("ja",), "CJK": ("zh", "ja"), "HANGUL": ("ko",), "DEVANAGARI": ("hi",),
    "BENGALI": ("bn",), "THAI": ("th",),
}  # fmt: skip
READ = 2000
"""Characters of a text that are examined."""


def language_name(code: str) -> str:
    return NAMES.get(code, code)


def detect_language(text: str, candidates: Sequence[str]) -> list[tuple[str, float]]:
    """Score each candidate as the language of the text, the most likely first; scores sum to 100, or all are 0 without evidence."""
    text = text[:READ].lower()
    words = re.findall(r"\w+", text)
    script = Counter(unicodedata.name(letter, "").partition(" ")[0] for letter in text if letter.isalpha())
    evidence = dict.fromkeys(candidates, 0.0)
    for code in evidence:
        common = sum(word in WORDS.get(code, ()) for word in words)
        letters = sum(count for name, count in script.items() if code in SCRIPTS.get(name, ()))
        evidence[code] = common / max(len(words), 1) + letters / max(len(text), 1)
    total = sum(evidence.values())
    scores = [(code, 100 * value / total if total else 0.0) for code, value in evidence.items()]
    return sorted(scores, key=lambda score: -score[1])
