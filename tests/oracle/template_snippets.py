"""Snippets that each use one feature of the template language, for make_template_goldens.py."""

CONTEXT = {
    "name": "Ada",
    "text": "  Hello, World  ",
    "word": "straße ÉCLAIR",
    "lines": "one\ntwo\n\nthree\n",
    "n": 7,
    "neg": -7,
    "x": 2.5,
    "big": 1e16,
    "yes": True,
    "no": False,
    "nothing": None,
    "empty": [],
    "numbers": [3, 1, 2, 3],
    "words": ["b", "A", "c", "a"],
    "map": {"b": 1, "A": 2, "items": 3, "nested": {"k": [1, None, True]}},
    "users": [
        {"name": "Zoe", "age": 30, "tags": ["x"]},
        {"name": "adam", "age": 25, "tags": []},
        {"name": "Bea", "age": 30, "active": True},
    ],
    "html": "<a href=\"x\">&'</a>",
    "unicode": "naïve 日本語 🎉",
}

# One template a line; "\n" inside a line is a line end of the template.
EXPRESSIONS = r"""
name
missing
missing.attribute
missing["key"]
missing()
missing is defined
name is defined
name.nothing is defined
map.missing
map["b"]
map.b
map.items is callable
map["items"]
map.get("b")
map.get("zz")
map.get("zz", "other")
map.nested.k[2]
map.nested.k.0
users[0].name
users[-1]["name"]
users[9]
users[9].name
name[0]
name[-1]
name[9]
unicode[6]
unicode | length
1 + 2 * 3
(1 + 2) * 3
7 // 2
neg // 2
7 % 3
neg % 3
7 % -3
7 / 2
6 / 2
2 ** 10
2 ** -1
-2 ** 2
2 ** 3 ** 2
7.5 // 2
-7.5 % 2
1 / 0
1 // 0
5 % 0
1.0
1.5e3
1e16
1e15
123456789.125
0.0001
0.00001
1e-7
1e100
big
0x1F + 0o17 + 0b101
1_000_000
9223372036854775807
-5 | abs
x | abs
"a" + "b"
"a" ~ 1 ~ none ~ true
"a" + 1
1 + "a"
"ab" * 3
3 * "ab"
"ab" * -1
[1, 2] + [3]
[1] * 3
(1, 2) + (3,)
[1] + (2,)
none + 1
yes + yes
not yes
not missing
yes and name
no and name
no or name
nothing or "default"
1 < 2
1 < 2 < 3
1 < 3 < 2
1 == 1.0
1 == true
"1" == 1
"a" < "b"
"a" < 1
none < 1
[1, 2] < [1, 3]
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{"a": 1} == {"a": 1.0}
nothing == none
missing == missing2
1 in numbers
9 in numbers
9 not in numbers
"ell" in text
1 in "abc"
"b" in map
"zz" in map
1 in 5
"a" in missing
numbers[1:]
numbers[:2]
numbers[::-1]
numbers[1:-1]
numbers[::2]
numbers[5:]
numbers[::0]
name[::-1]
nothing[1:]
n[:2]
map[1:]
unicode[::-1]
unicode[6:9]
text[2:7]
name[-2:]
numbers[-100:100]
"yes" if yes else "no"
"yes" if no else "no"
"yes" if no
("yes" if no) is defined
"a" if no else "b" if no else "c"
none
true
True
None
[1, "a", none, true, 2.5, "it's", 'say "x"', "both ' and \""]
{"a": 1, 'b': [1, (2,), ()], 3: none}
"tab\there \\ \x41 \u00e9 \101"
'single \'quoted\''
"con" "cat" 'enated'
["\n\t\r\\", "é", "\x00\x7f", "\u200b"]
(1, 2)
1, 2
()
[]
{}
[1, 2,]
{"a": 1,}
{"a": 1, "a": 2}
{[1]: 2}
name | upper
name | lower
word | upper
word | lower
word | title
word | capitalize
"hello-world (foo) [bar] it's" | title
"hello wORLD it's".title()
text | trim
"xxaxx" | trim("x")
text | length
map | length
5 | length
none | length
missing | length
missing | upper
missing | list
missing | first
missing | join
missing | tojson
missing | int
numbers | join
numbers | join(", ")
users | join(", ", attribute="name")
missing | default("d")
missing | d("d")
missing | default
"" | default("d")
"" | default("d", true)
none | default("d")
none | default("d", true)
missing.a | default("d")
numbers | first
numbers | last
empty | first
empty | last
name | first
name | last
numbers | sum
users | sum(attribute="age")
[1.5, 2] | sum
[[1], [2]] | sum(start=[])
empty | sum
numbers | max
numbers | min
words | max
words | min
users | max(attribute="age")
empty | max
numbers | sort
numbers | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
users | sort(attribute="name") | map(attribute="name") | list
users | sort(attribute="age,name") | map(attribute="name") | list
[1, "a"] | sort
words | unique | list
words | unique(case_sensitive=true) | list
numbers | unique | list
numbers | reverse | list
name | reverse
numbers | list
name | list
map | list
5 | list
map.keys()
map.values() | list
{"a": 1}.items()
{"a": 1} | items | list
none | items | list
map | dictsort
map | dictsort(true)
{"a": 2, "b": 1} | dictsort(by="value")
{"a": 2, "b": 1} | dictsort(reverse=true)
{"a": 2} | dictsort(by="other")
numbers | map("string") | list
words | map("upper") | join
users | map(attribute="name") | list
users | map(attribute="active", default="?") | list
users | map(attribute="tags.0") | list
numbers | map("nofilter") | list
numbers | select("odd") | list
numbers | reject("odd") | list
numbers | select("greaterthan", 1) | list
[0, 1, none, ""] | select | list
[0, 1, none, ""] | reject | list
users | selectattr("active") | map(attribute="name") | list
users | selectattr("age", "equalto", 30) | map(attribute="name") | list
users | selectattr("age", "==", 30) | list | length
users | rejectattr("active") | map(attribute="name") | list
users | rejectattr("age", "lt", 30) | map(attribute="name") | list
users | selectattr("name", "in", ["Zoe"]) | list | length
users | selectattr("active", "defined") | list | length
numbers | select("odd") | length
numbers | batch(3) | list
numbers | batch(3, "x") | list
numbers | slice(3) | list
numbers | slice(3, "x") | list
users | groupby("age")
users | groupby("age") | map(attribute="grouper") | list
"42" | int
"42.7" | int
" 42 " | int
"x" | int
"x" | int(7)
"ff" | int(base=16)
"0xff" | int(0, 16)
none | int
3.99 | int
-3.99 | int
true | int
"2.5" | float
"x" | float
"x" | float(1.5)
"1e3" | float
"inf" | float
3 | float
2.5 | round
3.5 | round
2.675 | round(2)
2.4 | round(0, "ceil")
2.45 | round(1, "floor")
5 | round
1234.5 | round(-2)
1234 | round(-2)
2.5 | round(0, "odd")
42 | string
none | string
"hello" | replace("l", "L")
"hello" | replace("l", "L", 1)
"hello" | replace("", "-")
112 | replace(1, 2)
lines | indent
lines | indent(2)
lines | indent(2, true)
lines | indent(2, false, true)
lines | indent("> ")
lines | indent(width=3, first=True, blank=True)
html | escape
html | e
html | safe
"<" | safe + "<"
"<" + ("<" | safe)
"<" ~ ("<" | safe)
("<" | safe) | escape
["<" | safe]
"%s is %d" | format("x", 5)
"%(a)s" | format(a=1)
"%s-%r-%5.2f|%05d|%-5s|%x|%%" % ("a", "b", 3.14159, 42, "l", 255)
"%s" % 5
"%s %s" % 5
"%d" % "x"
"%s" % (1, 2)
"%+d % d %#x %e %g" % (5, 5, 255, 12345.678, 0.0001)
"%c%c" % (65, "b")
"%(k)s" % {"k": "v"}
"{} {}".format(1, "a")
"{1} {0}".format("a", "b")
"{a} {b!r}".format(a=1, b="x")
"{:>5}|{:<5}|{:^5}|{:*^7}".format("a", "b", "c", "d")
"{:05d}|{:+d}|{:,}|{:x}|{:.2f}|{:e}|{:%}".format(42, 5, 1234567, 255, 3.14159, 12345.6, 0.5)
"{0.name} {0[age]}".format(users[0])
"{}".format()
"{{}}".format()
"{".format()
"a,b,c" | wordcount
"hello world foo" | truncate(8)
"hello world foo" | truncate(9, true)
"hello world foo" | truncate(9, false, "!", 0)
"ab" | center(7)
"abc".center(8, "*")
"a b  c".split()
" a b  c ".split(" ")
"a,b,c".split(",", 1)
"a,b,c".rsplit(",", 1)
" a b  c ".split(none, 1)
" a b  c ".rsplit(none, 1)
"a,b".split("")
"a--b".partition("--")
"a--b--c".rpartition("--")
"ab".partition("x")
"ab".rpartition("x")
lines.splitlines()
lines.splitlines(true)
text.strip()
text.lstrip()
text.rstrip() ~ "|"
"xyaxy".strip("xy")
name.upper() ~ name.lower()
"hello world".capitalize()
"Hello".swapcase()
name.startswith("A")
name.startswith(("X", "A"))
name.endswith("da")
name.endswith("x")
name.startswith("d", 1)
name.startswith(1)
"hello".find("l")
"hello".find("z")
"hello".rfind("l")
"hello".index("z")
"日本語".find("語")
"hello".count("l")
"aaa".count("aa")
"hello".count("")
"hello".replace("l", "L", 1)
"-".join(words)
"-".join(numbers)
"7".zfill(3) ~ "-7".zfill(4)
"a".ljust(3) ~ "|" ~ "a".rjust(3, "*")
"abc".isalpha() ~ "1".isdigit() ~ " ".isspace() ~ "aB".isupper() ~ "ab".islower()
"prefix-x".removeprefix("prefix-") ~ "x.py".removesuffix(".py")
numbers.count(3)
numbers.index(2)
numbers.index(99)
numbers.append(1)
map.update({"a": 1})
map.pop("b")
numbers.append is defined
"a".nomethod()
name()
map | tojson
users | tojson
users | tojson(indent=2)
map | tojson(indent=4)
{"b": 1, "a": 2} | tojson(sort_keys=true)
{"a": [1, 2]} | tojson(separators=(",", ":"))
unicode | tojson
unicode | tojson(ensure_ascii=true)
html | tojson
"\"\\\n\t\x01\x7f/" | tojson
[1.0, 1e20, 0.1, none, true] | tojson
[] | tojson(indent=2)
{} | tojson(indent=2)
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
(1, (2, 3)) | tojson
numbers | map("string") | tojson
range(5)
range(5) | list
range(2, 5) | list
range(5, 2, -1) | list
range(0, 10, 3) | list
range(0) | list
range(1000000)
range(1, 2, 0)
range(3)[1]
range(5) | length
range(10, 0, -3) | sum
dict(a=1, b="x")
dict([("a", 1)], b=2)
namespace(a=1).a
namespace(a=1).b is defined
name is string
5 is string
map is mapping
numbers is mapping
numbers is sequence
name is sequence
map is sequence
5 is sequence
numbers is iterable
5 is iterable
missing is iterable
none is none
missing is none
5 is number
true is number
"5" is number
5 is integer
true is integer
5.0 is float
true is boolean
1 is boolean
true is true
1 is true
false is false
3 is odd
4 is even
6 is divisibleby(3)
6 is divisibleby 4
"ab" is lower
"AB" is upper
5 is eq 5
5 is equalto(5)
5 is ne 4
5 is gt 4
5 is ge(5)
5 is lessthan 6
5 is in [1, 5]
5 is not in [1, 5]
none is sameas none
1 is sameas true
"upper" is filter
"nofilter" is filter
"odd" is test
range is callable
name is callable
5 is not none
not 5 is none
5 is nosuchtest
5 | nosuchfilter
raise_exception("boom " ~ n)
strftime_now("%d %b %Y")
strftime_now("%Y-%m-%dT%H:%M:%S %%")
strftime_now("")
1 if
1 +
(1
[1, 2
{"a": }
{"a" 1}
"open
a b
1 2
$
a..b
a.b.
name | 
name | upper(
5 is
x y z
a[1
f(a=1, 2)
f(**a, *b)
f(a=1, a=2)
")"
]
}
""".strip("\n").split("\n")

STATEMENTS = [
    "",
    "plain text",
    "a\n",
    "a\n\n",
    "a\r\nb\rc\r\n",
    "{# comment #}x",
    "{# comment #}\nx",
    "  {# comment #}\nx",
    "a {#- c -#} b",
    "{# open",
    "{% raw %}{{ x }}{% endraw %}",
    "{% raw -%}  {{ x }}  {%- endraw %}",
    "{% raw %}\n a {% if %}\n{% endraw %}\nb",
    "{% raw %}open",
    "a {% raw %}b",
    "{% if yes %}\nx\n{% endif %}\ny",
    "  {% if yes %}\n  x\n  {% endif %}\n  y",
    "a {% if yes %} b {% endif %} c",
    "a {%- if yes -%} b {%- endif -%} c",
    "  {%+ if yes %}x{% endif %}",
    "{% if yes +%}\nx{% endif %}",
    "x\n  {{ name }}\n  y",
    "x\n  {{- name -}}\n  y",
    "{{ name }}  {% if yes %}\nx{% endif %}",
    "{{ name -}}\n  {% if yes %}\nx{% endif %}",
    "\t {% set a = 1 %}\n{{ a }}",
    "{% if no %}a{% elif yes %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% else %}c{% endif %}",
    "{% if no %}a{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}",
    "{% if yes: %}x{% endif %}",
    "{% for i in numbers %}{{ i }},{% endfor %}",
    "{% for i in empty %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in missing %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in numbers %}{% break %}{% else %}none{% endfor %}",
    "{% for i in numbers %}{% if i != 9 %}{% continue %}{% endif %}x{% else %}none{% endfor %}",
    "{% for i in numbers %}{% if i == 2 %}{% break %}{% endif %}{% else %}none{% endfor %}",
    "{% for i in numbers %}{% if i == 3 %}{% continue %}{% endif %}{% else %}none{% endfor %}",
    "{% for i in [1, 2] %}{{ i }}{% for j in [] %}{% else %}{% break %}{% endfor %}{% endfor %}",
    "{% for i in 5 %}{% endfor %}",
    "{% for i in none %}{% endfor %}",
    "{% for c in name %}{{ c }}-{% endfor %}",
    "{% for k in map %}{{ k }} {% endfor %}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in map | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for i in numbers if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}",
    "{% for i in numbers if i > 9 %}x{% else %}none{% endfor %}",
    "{% for i in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in numbers %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}",
    "{% for i in numbers %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }};{% endfor %}",
    "{% for i in numbers %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for i in numbers %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in numbers %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1, 2] %}{% for j in [1, 2] %}{{ loop.index }}{% break %}{% endfor %}"
    "{{ loop.index }}"
    "{% endfor %}",
    "{% break %}",
    "{% for i in numbers %}{% set x = i %}{% endfor %}{{ x }}",
    "{% set a = 1 %}{% for i in [1, 2] %}{{ a }}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}",
    "{% set a = 1 %}{% if yes %}{% set a = 2 %}{% endif %}{{ a }}",
    "{% if no %}{% set a = 2 %}{% endif %}{{ a is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set (a, b) = [1, 2] %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set ns = namespace(n=0) %}{% for i in numbers %}{% set ns.n = ns.n + i %}"
    "{% endfor %}{{ ns.n }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{{ ns }}",
    "{% set ns = namespace() %}{{ ns.x }}{% set ns.x = 1 %}{{ ns.x }}",
    "{% set name.x = 1 %}",
    "{% set true = 1 %}",
    "{% set 1 = 1 %}",
    "{% set a %}x{{ n }}{% endset %}[{{ a }}]",
    "{% set a | upper %}x{{ name }}{% endset %}[{{ a }}]",
    "{% set a | replace('x', 'y') | upper %}x{% endset %}[{{ a }}]",
    "{% set ns = namespace() %}{% set ns.a %}x{% endset %}{{ ns.a }}",
    "{% filter upper %}a{{ name }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}aa{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }}",
    "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(z=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m() %}{{ name }}{{ later }}{% endmacro %}{% set later = 5 %}{{ m() }}",
    "{% macro m() %}{% set inner = 1 %}{% endmacro %}{{ m() }}{{ inner is defined }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro m() %}({{ caller() }}){% endmacro %}{% call m() %}body{% endcall %}",
    "{% macro m(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}"
    "{% call(x) m([1, 2]) %}<{{ x }}>{% endcall %}",
    "{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}",
    "{% call name %}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{{ m() | upper }}{{ m().strip() }}{{ m is callable }}"
    "{{ m.name }}",
    "{% macro m(x) %}\n  {%- if x is mapping -%}\n    {{ x | tojson }}\n  {%- else -%}\n    "
    "{{ x }}\n"
    "  {%- endif -%}\n{% endmacro %}\n{{ m({'a': 1}) }}{{ m(5) }}",
    "{% macro m(args) %}{{ args }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'args': 2}) }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}",
    "{% set j = joiner('|') %}{% for i in numbers %}{{ j() }}{{ i }}{% endfor %}",
    "{% generation %}x{{ name }}{% endgeneration %}",
    "{% for m in users %}{% generation %}{{ m.name }}{% endgeneration %}{% endfor %}",
    "{% print name, n %}",
    "{{ name",
    "{% if yes %}",
    "{% endif %}",
    "{% if yes %}{% endfor %}",
    "{% for i numbers %}{% endfor %}",
    "{% for i in %}{% endfor %}",
    "{% unknown %}",
    "{% %}",
    "{{ }}",
    "{% if %}{% endif %}",
    "{% macro %}{% endmacro %}",
    "{% set %}",
    "{% set x = %}",
    "{% if yes %}{{ 5 | nosuchfilter }}{% endif %}",
    "{% if no %}{{ 5 | nosuchfilter }}{% endif %}ok",
    "{% if no %}{% for i in numbers %}{{ 5 | nosuchfilter }}{% endfor %}{% endif %}ok",
    "{{ 5 | nosuchfilter if no else 6 }}",
    "{% set g = numbers | select('odd') %}{{ g | list }}{{ g | list }}",
    "{% set g = numbers | map('string') %}{{ g | first }}{{ g | join }}",
    "{% for u in users | groupby('age') %}{{ u.grouper }}:{{ u.list | length }};{% endfor %}",
    "{% for age, group in users | groupby('age') %}{{ age }}:"
    "{{ group | map(attribute='name') | join }};"
    "{% endfor %}",
    "{% set a = [1, 2] %}{% set a = a + [3] %}{{ a }}",
    "{% set m = dict(map, z=1) %}{{ m }}",
    "{% if name is string and n is number and not missing %}ok{% endif %}",
    "{% if (users | selectattr('active') | list | length) > 0 %}ok{% endif %}",
    "{%- for m in users -%}\n  {%- if loop.first -%}first{%- endif %}\n  {{ m.name }}\n"
    "{% endfor -%}\nend\n",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ [[1, 2], [3]][0][1] }}",
    "{{name}}{{-n-}}{{ x}}",
    "{{ loop is defined }}",
    "{% for i in [1] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% set range = 5 %}{{ range }}",
    "{{ caller is defined }}",
    "日本 {% if yes %}é{% endif %}\n",
    "{% for x in [1,2,3] %}{% if loop.index is odd %}{{ x }}{% endif %}{% endfor %}",
    "{% set x = namespace(found=false) %}{% for m in users %}{% if m.active %}"
    "{% set x.found = true %}"
    "{% break %}{% endif %}{% endfor %}{{ x.found }}",
]


def cases():
    """(template, context) of every snippet."""
    for expression in EXPRESSIONS:
        yield "{{ " + expression + " }}", CONTEXT
    for statement in STATEMENTS:
        yield statement, CONTEXT
