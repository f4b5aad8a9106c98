"""The words of the embedded grammar: small tables, one word per line, with what a German sentence needs to know."""

from __future__ import annotations

from typing import NamedTuple

# English singular, plural; German singular, plural; gender; kind. A weak noun (marked !) takes -n or -en outside the
# nominative singular: der Junge, den Jungen.
NOUNS = """
man men Mann Männer m person
woman women Frau Frauen f person
child children Kind Kinder n person
boy boys Junge Jungen m! person
girl girls Mädchen Mädchen n person
teacher teachers Lehrer Lehrer m person
student students Student Studenten m! person
doctor doctors Arzt Ärzte m person
friend friends Freund Freunde m person
neighbour neighbours Nachbar Nachbarn m! person
sister sisters Schwester Schwestern f person
brother brothers Bruder Brüder m person
mother mothers Mutter Mütter f person
father fathers Vater Väter m person
baker bakers Bäcker Bäcker m person
guest guests Gast Gäste m person
dog dogs Hund Hunde m animal
cat cats Katze Katzen f animal
horse horses Pferd Pferde n animal
bird birds Vogel Vögel m animal
bear bears Bär Bären m! animal
mouse mice Maus Mäuse f animal
apple apples Apfel Äpfel m food
pear pears Birne Birnen f food
egg eggs Ei Eier n food
cake cakes Kuchen Kuchen m food
soup soups Suppe Suppen f food
bread breads Brot Brote n food
sausage sausages Wurst Würste f food
cheese cheeses Käse Käse m food
book books Buch Bücher n text
letter letters Brief Briefe m text
newspaper newspapers Zeitung Zeitungen f text
story stories Geschichte Geschichten f text
poem poems Gedicht Gedichte n text
car cars Auto Autos n thing
chair chairs Stuhl Stühle m thing
lamp lamps Lampe Lampen f thing
table tables Tisch Tische m thing
clock clocks Uhr Uhren f thing
bicycle bicycles Fahrrad Fahrräder n thing
hat hats Hut Hüte m thing
picture pictures Bild Bilder n thing
door doors Tür Türen f opening
window windows Fenster Fenster n opening
box boxes Kiste Kisten f opening
suitcase suitcases Koffer Koffer m opening
garden gardens Garten Gärten m place
house houses Haus Häuser n place
kitchen kitchens Küche Küchen f place
school schools Schule Schulen f place
forest forests Wald Wälder m place
city cities Stadt Städte f place
village villages Dorf Dörfer n place
museum museums Museum Museen n place
"""

# English base, third person, past; German infinitive, third person, participle; pattern; kinds of the object.
# A separable prefix stands before a bar: auf|machen. The pattern is none (no object), acc, dat, both (dative person,
# accusative thing) or go (a direction; perfect with sein). A + marks the perfect with sein.
VERBS = """
sleep sleeps slept schlafen schläft geschlafen none -
laugh laughs laughed lachen lacht gelacht none -
work works worked arbeiten arbeitet gearbeitet none -
sing sings sang singen singt gesungen none -
wait waits waited warten wartet gewartet none -
dance dances danced tanzen tanzt getanzt none -
cry cries cried weinen weint geweint none -
arrive arrives arrived an|kommen kommt angekommen none+ -
wake_up wakes_up woke_up auf|wachen wacht aufgewacht none+ -
get_up gets_up got_up auf|stehen steht aufgestanden none+ -
eat eats ate essen isst gegessen acc food
cook cooks cooked kochen kocht gekocht acc food
try tries tried probieren probiert probiert acc food
read reads read lesen liest gelesen acc text
write writes wrote schreiben schreibt geschrieben acc text
understand understands understood verstehen versteht verstanden acc text,person
translate translates translated übersetzen übersetzt übersetzt acc text
read_aloud reads_aloud read_aloud vor|lesen liest vorgelesen acc text
see sees saw sehen sieht gesehen acc person,animal,thing,food,text
find finds found finden findet gefunden acc person,animal,thing,food,text
look_for looks_for looked_for suchen sucht gesucht acc person,animal,thing,text
buy buys bought kaufen kauft gekauft acc food,thing,text
sell sells sold verkaufen verkauft verkauft acc food,thing,text
love loves loved lieben liebt geliebt acc person,animal,food
know knows knew kennen kennt gekannt acc person
visit visits visited besuchen besucht besucht acc person
ask asks asked fragen fragt gefragt acc person
carry carries carried tragen trägt getragen acc thing,food,animal
draw draws drew zeichnen zeichnet gezeichnet acc person,animal,thing
forget forgets forgot vergessen vergisst vergessen acc person,thing,text
open opens opened auf|machen macht aufgemacht acc opening
close closes closed zu|machen macht zugemacht acc opening
pick_up picks_up picked_up ab|holen holt abgeholt acc person,thing
take_along takes_along took_along mit|nehmen nimmt mitgenommen acc person,animal,thing,food
call calls called an|rufen ruft angerufen acc person
invite invites invited ein|laden lädt eingeladen acc person
help helps helped helfen hilft geholfen dat person
thank thanks thanked danken dankt gedankt dat person
follow follows followed folgen folgt gefolgt dat+ person,animal
listen_to listens_to listened_to zu|hören hört zugehört dat person
give gives gave geben gibt gegeben both food,thing,text
show shows showed zeigen zeigt gezeigt both thing,text,animal
bring brings brought bringen bringt gebracht both food,thing,text
send sends sent schicken schickt geschickt both text,thing
go goes went gehen geht gegangen go+ place
run runs ran laufen läuft gelaufen go+ place
drive drives drove fahren fährt gefahren go+ place
come comes came kommen kommt gekommen go+ place
return returns returned zurück|kehren kehrt zurückgekehrt go+ place
"""

# English, German stem, kinds it fits
ADJECTIVES = """
old alt person,animal,thing,opening,place,text
young jung person,animal
small klein person,animal,thing,food,opening,place
big groß person,animal,thing,food,opening,place
happy glücklich person,animal
tired müde person,animal
clever klug person,animal
friendly freundlich person,animal
new neu thing,opening,place,text
red rot thing,food,opening
green grün thing,food,opening
white weiß thing,opening,animal
black schwarz thing,opening,animal
beautiful schön thing,place,text,animal
heavy schwer thing,opening
fresh frisch food
warm warm food,place
sweet süß food
long lang text
short kurz text
strange seltsam person,animal,thing,text,place
quiet ruhig person,animal,place
"""

# English and German determiner, and how it declines: der (dieser), ein (kein, mein) or none. Number: s, p or both.
DETERMINERS = """
the d der sp
this dies der s
every jed der s
a ein ein s
my mein ein sp
your dein ein sp
his sein ein sp
her ihr ein sp
our unser ein sp
- - none p
"""

# English and German subject; person and number; English and German object forms (accusative, dative)
PRONOUNS = """
I ich 1s me mich mir
you du 2s you dich dir
he er 3s him ihn ihm
she sie 3s her sie ihr
we wir 1p us uns uns
they sie 3p them sie ihnen
"""

TIMES = "today heute|tomorrow morgen|yesterday gestern|now jetzt|often oft|later später|in_the_evening am_Abend|in_the_morning am_Morgen"
PAST_TIMES, FUTURE_TIMES = {"yesterday"}, {"tomorrow", "later"}
CONJUNCTIONS = "because weil|although obwohl|while während|if wenn"
# English base; German ich, du, er, wir
MODALS = "can kann kannst kann können|must muss musst muss müssen|should soll sollst soll sollen|want will willst will wollen"
KNOWING = "know weiß weißt weiß wissen|believe glaube glaubst glaubt glauben|say sage sagst sagt sagen|hope hoffe hoffst hofft hoffen"


class Noun(NamedTuple):
    """A noun in both languages; indices 0 = singular, 1 = plural."""

    english: tuple[str, str]
    german: tuple[str, str]
    gender: str
    weak: bool
    kind: str


class Verb(NamedTuple):
    """A verb in both languages; `prefix` is the separable one, `pattern` what it takes."""

    base: str
    third: str
    past: str
    infinitive: str
    german_third: str
    participle: str
    prefix: str
    pattern: str
    to_be: bool
    kinds: frozenset[str] = frozenset()


def lines(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def noun(row: list[str]) -> Noun:
    english, plural, german, german_plural, gender, kind = row
    return Noun((english, plural), (german, german_plural), gender[0], gender.endswith("!"), kind)


def verb(row: list[str]) -> Verb:
    base, third, past, infinitive, german_third, participle, pattern, kinds = row
    prefix, _, stem = infinitive.rpartition("|")
    takes = pattern.rstrip("+"), pattern.endswith("+"), frozenset(kinds.split(",")) - {"-"}
    return Verb(base, third, past, stem, german_third, participle, prefix, *takes)


ALL_NOUNS = [noun(row) for row in lines(NOUNS)]
ALL_VERBS = [verb(row) for row in lines(VERBS)]
ALL_ADJECTIVES = [(english, german, frozenset(kinds.split(","))) for english, german, kinds in lines(ADJECTIVES)]
