//! Rust sources as token trees: functions, type names, texts, and references between modules.

use std::iter::Peekable;
use std::slice::Iter;

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use super::tree::File;

/// Keywords that declare a type or trait. An alias (`type`) is left out: most are associated types.
const TYPE_KEYWORDS: &[&str] = &["struct", "enum", "trait", "union"];

/// Elements of a tuple parameter that its reader can keep apart.
const TUPLE_MAX: usize = 2;

/// Fewest words of a string literal that is a message.
const MESSAGE_WORDS_MIN: usize = 4;

/// The parts of a Rust file that the rules look at; test modules are left out.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Functions with a tuple of more than two elements in a parameter.
    pub(super) tuples: Vec<Place>,
    /// Functions with two or more parameters of type `bool`.
    pub(super) flags: Vec<Place>,
    /// The types that the file declares.
    pub(super) types: Vec<Place>,
    /// Prose in string literals.
    messages: Vec<Place>,
    /// Paths that start at the root of the crate, by their first name.
    pub(super) references: Vec<Place>,
    /// The names that `use` brings into the file, each with the first name of its path.
    pub(super) imports: Vec<(String, String)>,
}

/// A name or text at a line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) text: String,
    pub(super) line: usize,
}

impl Source {
    /// Reads a file of the module at `path` of its crate; `None` if its text is not Rust.
    pub(super) fn read(file: &File, path: &[&str]) -> Option<Self> {
        let tokens: TokenStream = file.text.parse().ok()?;
        let mut source = Self::default();
        let mut path: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        source.walk(&trees(tokens), &mut path);
        Some(source)
    }

    /// Returns the messages as sentences.
    pub(super) fn messages(&self) -> String {
        self.messages.iter().map(|place| place.text.as_str()).collect::<Vec<_>>().join(". ")
    }

    fn walk(&mut self, tokens: &[TokenTree], path: &mut Vec<String>) {
        let mut at = 0;
        while at < tokens.len() {
            let rest = &tokens[at..];
            at += match rest {
                [TokenTree::Punct(hash), TokenTree::Group(attribute), ..] if hash.as_char() == '#' => {
                    self.attribute(attribute, rest, path)
                }
                [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Group(body), ..]
                    if word == "mod" =>
                {
                    path.push(name.to_string());
                    self.walk(&trees(body.stream()), path);
                    path.pop();
                    3
                }
                [first, ..] => {
                    self.token(first, rest, path);
                    1
                }
                [] => 1,
            };
        }
    }

    /// Walks an attribute and returns how many tokens to pass over; documentation and test code have no texts.
    fn attribute(&mut self, attribute: &Group, rest: &[TokenTree], path: &mut Vec<String>) -> usize {
        let inner = attribute.stream().to_string();
        if inner.replace(' ', "") == "cfg(test)" {
            let ends = |tree: &TokenTree| match tree {
                TokenTree::Punct(punct) => punct.as_char() == ';',
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                _ => false,
            };
            return rest.iter().position(ends).map_or(rest.len(), |end| end + 1);
        }
        if !inner.starts_with("doc") && !inner.starts_with("expect") {
            self.walk(&trees(attribute.stream()), path);
        }
        2
    }

    fn token(&mut self, first: &TokenTree, rest: &[TokenTree], path: &mut Vec<String>) {
        match first {
            TokenTree::Group(group) => self.walk(&trees(group.stream()), path),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let prose = text.split_whitespace().filter(|word| is_word(word)).count();
                if text.ends_with(['"', '#']) && prose >= MESSAGE_WORDS_MIN && !is_sql(&text) {
                    self.messages.push(place(text, first));
                }
            }
            TokenTree::Ident(word) => match (word.to_string().as_str(), rest.get(1)) {
                ("fn", Some(TokenTree::Ident(name))) => self.function(&name.to_string(), rest),
                ("use", _) => self.import(&rest[1..]),
                ("crate" | "super", _) => self.reference(rest, path),
                (keyword, Some(TokenTree::Ident(name))) if TYPE_KEYWORDS.contains(&keyword) => {
                    self.types.push(place(name.to_string(), first));
                }
                _ => {}
            },
            TokenTree::Punct(_) => {}
        }
    }

    fn function(&mut self, name: &str, rest: &[TokenTree]) {
        let Some(parameters) = at_top(rest.iter()).find_map(|(tree, angles)| match tree {
            TokenTree::Group(group) if angles == 0 && group.delimiter() == Delimiter::Parenthesis => {
                Some(trees(group.stream()))
            }
            _ => None,
        }) else {
            return;
        };
        let kinds: Vec<&[TokenTree]> = split(&parameters).into_iter().filter_map(kind).collect();
        let flags =
            kinds.iter().filter(|kind| matches!(kind, [TokenTree::Ident(word)] if word == "bool")).count();
        if flags >= 2 {
            self.flags.push(place(name.to_owned(), &rest[0]));
        }
        if kinds.iter().any(|kind| has_tuple(kind)) {
            self.tuples.push(place(name.to_owned(), &rest[0]));
        }
    }

    /// Keeps the names of a `use` with the first name of its path, as the root of a crate re-exports them.
    fn import(&mut self, rest: &[TokenTree]) {
        let end =
            rest.iter().position(|tree| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ';'));
        let path = &rest[..end.unwrap_or(rest.len())];
        let first = path.iter().find_map(|tree| match tree {
            TokenTree::Ident(name) if name != "crate" && name != "self" => Some(name.to_string()),
            _ => None,
        });
        if let Some(first) = first {
            let mut names = Vec::new();
            leaves(path, &mut names);
            self.imports.extend(names.into_iter().map(|name| (name, first.clone())));
        }
    }

    /// Keeps a path from `crate` or `super` by the name below the root of the crate, if it reaches the root.
    fn reference(&mut self, rest: &[TokenTree], path: &[String]) {
        let mut depth = path.len();
        let mut tokens = rest.iter().peekable();
        while let Some(TokenTree::Ident(word)) = tokens.peek() {
            match word.to_string().as_str() {
                "crate" => depth = 0,
                "super" if depth > 0 => depth -= 1,
                _ => break,
            }
            tokens.next();
            if !passes_colons(&mut tokens) {
                return;
            }
        }
        if depth > 0 {
            return;
        }
        match tokens.next() {
            Some(tree @ TokenTree::Ident(name)) => self.references.push(place(name.to_string(), tree)),
            Some(TokenTree::Group(group)) => {
                let inner = trees(group.stream());
                let first = |part: &&[TokenTree]| part.first().cloned();
                for tree in split(&inner).iter().filter_map(first) {
                    self.references.push(place(tree.to_string(), &tree));
                }
            }
            _ => {}
        }
    }
}

fn place(text: String, tree: &TokenTree) -> Place {
    Place { text, line: tree.span().start().line }
}

fn trees(tokens: TokenStream) -> Vec<TokenTree> {
    tokens.into_iter().collect()
}

fn passes_colons(tokens: &mut Peekable<Iter<'_, TokenTree>>) -> bool {
    let colon = |tree: Option<&TokenTree>| matches!(tree, Some(TokenTree::Punct(p)) if p.as_char() == ':');
    colon(tokens.next()) && colon(tokens.next())
}

/// Returns each token with the count of angle brackets around it.
fn at_top<'a>(tokens: impl Iterator<Item = &'a TokenTree>) -> impl Iterator<Item = (&'a TokenTree, usize)> {
    let mut angles = 0_usize;
    let mut arrow = false;
    tokens.map(move |tree| {
        if let TokenTree::Punct(punct) = tree {
            match punct.as_char() {
                '<' => angles += 1,
                '>' if !arrow => angles = angles.saturating_sub(1),
                _ => {}
            }
            arrow = punct.as_char() == '-' && punct.spacing() == Spacing::Joint;
        }
        (tree, angles)
    })
}

/// Splits at the commas outside of angle brackets.
fn split(tokens: &[TokenTree]) -> Vec<&[TokenTree]> {
    let is_comma = |tree: &TokenTree| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ',');
    let ends = at_top(tokens.iter()).enumerate();
    let ends = ends.filter(|(_, (tree, angles))| *angles == 0 && is_comma(tree)).map(|(at, _)| at);
    let mut parts = Vec::new();
    let mut start = 0;
    for end in ends.chain([tokens.len()]) {
        if start < end {
            parts.push(&tokens[start..end]);
        }
        start = end + 1;
    }
    parts
}

/// Returns the type of a parameter: all after the first single colon.
fn kind(parameter: &[TokenTree]) -> Option<&[TokenTree]> {
    let colon = parameter.iter().position(|tree| {
        matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Alone)
    })?;
    Some(&parameter[colon + 1..])
}

/// Returns whether a type has a tuple of more than [`TUPLE_MAX`] elements; the inputs of `Fn(..)` are not one.
fn has_tuple(kind: &[TokenTree]) -> bool {
    kind.iter().enumerate().any(|(at, tree)| {
        let TokenTree::Group(group) = tree else { return false };
        let inner = trees(group.stream());
        let called = at > 0 && matches!(kind[at - 1], TokenTree::Ident(_));
        let tuple = group.delimiter() == Delimiter::Parenthesis && !called;
        (tuple && split(&inner).len() > TUPLE_MAX) || has_tuple(&inner)
    })
}

/// Collects the names that a `use` path ends in.
fn leaves(path: &[TokenTree], names: &mut Vec<String>) {
    for part in split(path) {
        match part.last() {
            Some(TokenTree::Ident(name)) => names.push(name.to_string()),
            Some(TokenTree::Group(group)) => leaves(&trees(group.stream()), names),
            _ => {}
        }
    }
}

fn is_word(word: &str) -> bool {
    word.trim_matches(|c: char| !c.is_alphanumeric()).chars().all(|c| c.is_alphabetic() || "'-".contains(c))
        && word.chars().any(char::is_alphabetic)
}

fn is_sql(text: &str) -> bool {
    let first = text.trim_matches(['"', 'r', '#', ' ', '\n', '\\']).split_whitespace().next().unwrap_or("");
    first.len() > 1 && first.chars().all(|c| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Source {
        let file = File { path: "crates/a/src/b/c.rs".to_owned(), text: text.to_owned() };
        Source::read(&file, &["b", "c"]).unwrap()
    }

    fn texts(places: &[Place]) -> Vec<String> {
        places.iter().map(|place| format!("{} {}", place.line, place.text)).collect()
    }

    #[test]
    fn tuple_parameters_are_found_at_any_depth() {
        let source = read(
            "fn two(a: (u8, u8)) {}\nfn three(a: &[(u8, Map<u8, u8>, u8)]) {}\n\
             fn call<F: Fn(u8, u8, u8)>(f: F, g: impl Fn(u8, u8, u8) -> (u8, u8)) -> (u8, u8, u8) {}\n\
             impl A { async fn within(&self, a: Option<(u8, u8, u8)>) {} }",
        );

        assert_eq!(texts(&source.tuples), ["2 three", "4 within"]);
    }

    #[test]
    fn two_flags_are_found_and_one_is_not() {
        let source = read("fn one(a: bool, b: &bool) {}\nfn two(a: bool, c: u8, b: bool,) {}");

        assert_eq!(texts(&source.flags), ["2 two"]);
    }

    #[test]
    fn types_of_test_modules_are_not_counted() {
        let source = read("struct A;\n#[cfg(test)]\nmod tests { struct A; }\nenum B { C }");

        assert_eq!(texts(&source.types), ["1 A", "4 B"]);
    }

    #[test]
    fn messages_are_texts_of_four_words_outside_of_comments() {
        let source = read(
            "/// This is not a message.\n#[error(\"cannot read the file `{0}`\")]\nconst A: &str = \"SELECT a FROM b WHERE c\";\nlet b = \"short one\";",
        );

        assert_eq!(texts(&source.messages), ["2 \"cannot read the file `{0}`\""]);
    }

    #[test]
    fn references_reach_the_root_by_crate_or_by_super() {
        let source = read(
            "use crate::{x::Y, z};\nuse super::near;\nfn f() { super::super::w::go(); crate::v() }\nmod m { use super::super::super::u; }\n",
        );

        assert_eq!(texts(&source.references), ["1 x", "1 z", "3 w", "3 v", "4 u"]);
    }

    #[test]
    fn imports_name_the_module_that_they_come_from() {
        let source =
            read("pub use self::store::{Store, error::{StoreError as E, Other}};\npub use path::Path;");

        let expect = [("Store", "store"), ("E", "store"), ("Other", "store"), ("Path", "path")];
        let expect = expect.map(|(name, module)| (name.to_owned(), module.to_owned()));
        assert_eq!(source.imports, expect);
    }
}
