"""Sentence pairs in informal variants: without final punctuation, in lower case, with names, and common greetings.

The grammar writes every sentence with a capital letter and a closing mark. A model that has read nothing else translates
"i saw the dog" badly, cannot copy a name, and does not know "Hello!".
"""

from __future__ import annotations

import random

NAMES = (
    "Anna Ben Carlos Diana Emma Felix Grace Hugo Ines James Kim Laura Max Nina Oscar Paul Quinn Rosa Sam Tom Uma Vera Will "
    "Xenia Yusuf Zoe"
).split()
FIRST, VOWELS, LAST = "bcdfghjklmnpqrstvwxyz", "aeiouy", ["", "", "l", "m", "n", "r", "s", "x", "ck", "th"]
MARKS = ".?!"
# English | German; an underscore stands for a name
PHRASES = """
Hello! | Hallo!
Hi! | Hallo!
Hello, _! | Hallo, _!
Hello world! | Hallo Welt!
Good morning! | Guten Morgen!
Good morning, _! | Guten Morgen, _!
Good evening! | Guten Abend!
Good night! | Gute Nacht!
Goodbye! | Auf Wiedersehen!
See you later! | Bis später!
Welcome! | Willkommen!
Thanks! | Danke!
Thank you! | Danke!
Thank you very much! | Vielen Dank!
Thank you, _! | Danke, _!
Please! | Bitte!
Yes. | Ja.
No. | Nein.
How are you? | Wie geht es dir?
How are you, _? | Wie geht es dir, _?
I am fine. | Mir geht es gut.
I'm fine, thank you. | Mir geht es gut, danke.
What is your name? | Wie heißt du?
What's your name? | Wie heißt du?
My name is _. | Ich heiße _.
I am _. | Ich bin _.
This is _. | Das ist _.
I love _. | Ich liebe _.
Where are you from? | Woher kommst du?
Where do you live? | Wo wohnst du?
Where is _? | Wo ist _?
I am hungry. | Ich habe Hunger.
I'm hungry. | Ich habe Hunger.
I am tired. | Ich bin müde.
I'm tired. | Ich bin müde.
I am happy. | Ich bin glücklich.
I'm sorry. | Es tut mir leid.
Excuse me! | Entschuldigung!
I do not understand. | Ich verstehe nicht.
I don't know. | Ich weiß nicht.
Nice to meet you. | Freut mich.
Do you speak English? | Sprichst du Englisch?
Do you speak German? | Sprichst du Deutsch?
I speak English. | Ich spreche Englisch.
I am learning German. | Ich lerne Deutsch.
What is this? | Was ist das?
What time is it? | Wie spät ist es?
This is a test. | Das ist ein Test.
Happy birthday! | Alles Gute zum Geburtstag!
The weather is nice today. | Das Wetter ist heute schön.
The cat sits on the mat. | Die Katze sitzt auf der Matte.
The quick brown fox jumps over the lazy dog. | Der schnelle braune Fuchs springt über den faulen Hund.
Attention is all you need. | Aufmerksamkeit ist alles, was du brauchst.
"""
PAIRS = [(english, german) for english, _, german in (line.partition(" | ") for line in PHRASES.strip().splitlines())]


def casual(english: str, german: str, number: int, reverse: bool = False) -> tuple[str, str]:
    """Vary the pair with this number, and return source and target; a number always has the same variation.

    A phrase takes the place of the pair (6 %), or a name that of the subject "He" or "She" (60 %). Then, each with a chance
    of 30 %, both sides lose their closing mark, and the source is written in lower case; the target keeps its capital
    letters. So about half of the pairs stay as they are. With `reverse`, German is the source.
    """
    r = random.Random(number)
    if r.random() < 0.06:
        (english, german), named = r.choice(PAIRS), name(r)
        english, german = english.replace("_", named), german.replace("_", named)
    elif r.random() < 0.6:
        english, german = with_name(english, german, name(r))
    if r.random() < 0.3:
        english, german = english.rstrip(MARKS), german.rstrip(MARKS)
    source, target = (german, english) if reverse else (english, german)
    return source.lower() if r.random() < 0.3 else source, target


def with_name(english: str, german: str, name: str) -> tuple[str, str]:
    """Replace the pronoun that both sides begin with; a pair that begins otherwise is returned as it is."""
    (first, _, rest), (erste, _, german_rest) = english.partition(" "), german.partition(" ")
    if (first, erste) not in (("He", "Er"), ("She", "Sie")):
        return english, german
    return f"{name} {rest}", f"{name} {german_rest}"


def name(r: random.Random) -> str:
    """Draw a common name or, as often, an invented one of two or three syllables."""
    if r.random() < 0.5:
        return r.choice(NAMES)
    syllables = [r.choice(FIRST) + r.choice(VOWELS) + r.choice(LAST) for _ in range(r.randint(2, 3))]
    return "".join(syllables).capitalize()
