//! Where the commands of a script end.
//!
//! # Source
//! POSIX.1-2024, "Shell Command Language", sections 2.3 (tokens), 2.7.4 (here-documents), 2.10 (grammar).

/// A command of the script with all its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unit {
    /// Its first line, from 1.
    pub(super) line: usize,
    /// As it stands, without the comments before it.
    pub(super) text: String,
    /// The comments before it, without `#`.
    pub(super) comments: Vec<String>,
    /// Its simple commands, each with its words as they stand, in order; those of inner commands too.
    pub(super) commands: Vec<Vec<String>>,
    /// It is the definition of this function.
    pub(super) function: Option<String>,
    /// It holds something else than one simple command.
    pub(super) compound: bool,
    /// It leaves something running.
    pub(super) background: bool,
}

/// Why a script was not understood: the line, and what is there.
pub(super) type Unclear = (usize, &'static str);

/// What is open, and what ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    If,
    Loop,
    Case,
    Brace,
    Paren,
}

/// Where a script reads its own path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SelfMark {
    /// As a variable, which another one may replace: with its `$`, or only its name where it stands in braces.
    Name { begin: usize, end: usize, braces: bool },
    /// In a way that only the shell of the script can answer.
    Other { begin: usize },
}

/// All places where a script reads its own path.
#[derive(Debug)]
pub(super) struct SelfMarks {
    pub(super) marks: Vec<SelfMark>,
    /// Up to where the script was understood.
    pub(super) end: usize,
}

/// Finds where a script reads its own path.
pub(super) fn self_marks(script: &str) -> SelfMarks {
    let mut scanner = Scanner { lenient: true, ..Scanner::of(script) };
    let end = loop {
        match scanner.unit(&mut Vec::new()) {
            Ok(Some(_)) => {}
            Ok(None) => break script.len(),
            Err(_) => break scanner.at,
        }
    };
    SelfMarks { marks: scanner.marks, end }
}

/// Returns where the substitution ends that begins at a place.
pub(super) fn end_of_substitution(text: &str, begin: usize) -> Option<usize> {
    let mut scanner = Scanner { at: begin, ..Scanner::of(text) };
    scanner.part().ok().map(|()| scanner.at)
}

/// Splits a script into its commands.
pub(super) fn units(script: &str) -> Result<Vec<Unit>, Unclear> {
    let mut scanner = Scanner::of(script);
    let mut units = Vec::new();
    let mut comments = Vec::new();
    while let Some(unit) = scanner.unit(&mut comments)? {
        units.push(unit);
    }
    Ok(units)
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    open: Vec<Open>,
    /// Here-documents whose text begins with the next line.
    here: Vec<Here>,
    /// Where the script reads its own path.
    marks: Vec<SelfMark>,
    /// Only quotes and expansions matter.
    lenient: bool,
}

/// A here-document.
struct Here {
    end: String,
    /// Tabs before its end count for nothing.
    tabs: bool,
    /// Its text is taken as it is.
    quoted: bool,
}

impl<'a> Scanner<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, at: 0, line: 1, open: Vec::new(), here: Vec::new(), marks: Vec::new(), lenient: false }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn eat(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        if c == '\n' {
            self.line += 1;
        }
        Some(c)
    }

    fn eat_if(&mut self, text: &str) -> bool {
        let is = self.rest().starts_with(text);
        if is {
            for _ in text.chars() {
                self.eat();
            }
        }
        is
    }

    /// Returns the next command; none at the end.
    fn unit(&mut self, comments: &mut Vec<String>) -> Result<Option<Unit>, Unclear> {
        self.skip_to_command(comments);
        if self.peek().is_none() {
            return Ok(None);
        }
        let begin = self.at;
        let mut unit = Unit { line: self.line, comments: std::mem::take(comments), ..Unit::default() };
        let mut words: Vec<String> = Vec::new();
        let mut simple = 0;
        // After an operator the command goes on in the next line.
        let mut goes_on = false;
        loop {
            match self.peek() {
                None => break,
                Some(' ' | '\t') => {
                    self.eat();
                    continue;
                }
                Some('\\') if self.rest().starts_with("\\\n") => {
                    self.eat_if("\\\n");
                    continue;
                }
                Some('#') => {
                    self.comment();
                    continue;
                }
                Some('\n') => {
                    end_command(&mut unit, &mut words, &mut simple);
                    self.eat();
                    self.here_documents()?;
                    if self.open.is_empty() && !goes_on {
                        break;
                    }
                    continue;
                }
                Some('<' | '>') => self.redirection(&mut words)?,
                Some(';') if self.ends_here(&unit, &words) => break,
                Some('&' | '|' | ';') => {
                    if unit.function.is_some() && self.open.is_empty() {
                        return Err((self.line, "the definition of a function amid other commands"));
                    }
                    end_command(&mut unit, &mut words, &mut simple);
                    goes_on = self.operator(&mut unit);
                    continue;
                }
                Some('(') => {
                    if let [name] = words.as_slice()
                        && self.rest().starts_with("()")
                        && is_function_name(name)
                    {
                        let name = name.clone();
                        words.clear();
                        self.eat_if("()");
                        self.function(&mut unit, name);
                        goes_on = true;
                        continue;
                    }
                    unit.compound = true;
                    if !words.is_empty() {
                        return Err((self.line, "a parenthesis within a command"));
                    }
                    if self.rest().starts_with("((") {
                        let begin = self.at;
                        self.balanced('(', ')')?;
                        words.push(self.text[begin..self.at].to_owned());
                    } else {
                        self.eat();
                        self.open.push(Open::Paren);
                    }
                }
                Some(')') => {
                    end_command(&mut unit, &mut words, &mut simple);
                    self.eat();
                    match self.open.last() {
                        Some(Open::Paren) => drop(self.open.pop()),
                        // The end of a pattern.
                        Some(Open::Case) => {}
                        _ => return Err((self.line, "a parenthesis that closes nothing")),
                    }
                }
                Some(_) => {
                    let word = self.word()?;
                    self.take_word(word, &mut unit, &mut words)?;
                }
            }
            goes_on = false;
        }
        end_command(&mut unit, &mut words, &mut simple);
        if !self.open.is_empty() || goes_on {
            return Err((unit.line, "a command that does not end"));
        }
        if !self.here.is_empty() {
            return Err((unit.line, "a here-document that does not end"));
        }
        unit.compound |= simple > 1;
        unit.text = self.text[begin..self.at].trim_end().to_owned();
        Ok(Some(unit))
    }

    /// Says whether a `;` ends a function, or a command about the shell itself, so that the next is one of its own.
    fn ends_here(&self, unit: &Unit, words: &[String]) -> bool {
        const ABOUT_SHELL: [&str; 7] = ["cd", "set", "export", "readonly", "umask", "source", "."];
        let is_about = ABOUT_SHELL.contains(&words.first().map_or("", String::as_str))
            || words.iter().all(|word| word.split_once('=').is_some_and(|(name, _)| super::is_name(name)));
        let is_alone =
            self.open.is_empty() && self.here.is_empty() && unit.commands.is_empty() && !unit.compound;
        let is_function = unit.function.is_some() && self.open.is_empty() && self.here.is_empty();
        is_function || (is_alone && is_about && !words.is_empty() && !self.rest().starts_with(";;"))
    }

    /// Goes on to the next command, and keeps the comments before it.
    fn skip_to_command(&mut self, comments: &mut Vec<String>) {
        while let Some(c) = self.peek() {
            match c {
                '#' => comments.push(self.comment()),
                '\n' if self.text[..self.at].ends_with("\n") || self.at == 0 => {
                    // What stands apart from the next command is not about it.
                    comments.clear();
                    self.eat();
                }
                ' ' | '\t' | '\n' | ';' => drop(self.eat()),
                _ => return,
            }
        }
    }

    fn comment(&mut self) -> String {
        let begin = self.at;
        while self.peek().is_some_and(|c| c != '\n') {
            self.eat();
        }
        self.text[begin..self.at].trim_start_matches('#').trim().to_owned()
    }

    /// Takes an operator, and says whether the command goes on behind it.
    fn operator(&mut self, unit: &mut Unit) -> bool {
        if ["&&", "||", "|&"].into_iter().any(|operator| self.eat_if(operator)) {
            unit.compound = true;
            return true;
        }
        if [";;&", ";;", ";&"].into_iter().any(|operator| self.eat_if(operator)) {
            return false;
        }
        match self.eat() {
            Some('|') => {
                unit.compound = true;
                true
            }
            Some('&') => {
                unit.background = true;
                unit.compound = true;
                false
            }
            _ => false,
        }
    }

    fn function(&mut self, unit: &mut Unit, name: String) {
        if self.open.is_empty() && unit.function.is_none() && !unit.compound {
            unit.function = Some(name);
        }
        unit.compound = true;
    }

    /// Takes a word, which may begin or end a compound command.
    fn take_word(&mut self, word: String, unit: &mut Unit, words: &mut Vec<String>) -> Result<(), Unclear> {
        if !words.is_empty() {
            if words[0] == "function" && words.len() == 1 {
                let name = word;
                words.clear();
                self.eat_if("()");
                self.function(unit, name);
                return Ok(());
            }
            words.push(word);
            return Ok(());
        }
        let close = |scanner: &mut Self, kind: Open| match scanner.open.pop() {
            Some(open) if open == kind => Ok(()),
            _ => Err((scanner.line, "an end of a command that has not begun")),
        };
        let opens = match word.as_str() {
            "if" => Some(Open::If),
            "for" | "while" | "until" | "select" => Some(Open::Loop),
            "case" => Some(Open::Case),
            "{" => Some(Open::Brace),
            _ => None,
        };
        if let Some(open) = opens {
            self.open.push(open);
            unit.compound = true;
            if matches!(word.as_str(), "for" | "select" | "case") {
                // Their words are no command.
                words.push(word);
            }
            return Ok(());
        }
        match word.as_str() {
            "fi" => close(self, Open::If),
            "done" => close(self, Open::Loop),
            "esac" => close(self, Open::Case),
            "}" => close(self, Open::Brace),
            "then" | "else" | "elif" | "do" | "!" | "time" => {
                unit.compound = true;
                Ok(())
            }
            "[[" => {
                unit.compound = true;
                while !self.eat_if("]]") {
                    match self.peek() {
                        None => return Err((self.line, "a `[[` that does not end")),
                        Some(' ' | '\t' | '\n' | '<' | '>' | '&' | '|' | '(' | ')' | ';') => drop(self.eat()),
                        Some(_) => drop(self.word()?),
                    }
                }
                Ok(())
            }
            "coproc" => Err((self.line, "a coprocess")),
            _ => {
                words.push(word);
                Ok(())
            }
        }
    }

    fn redirection(&mut self, words: &mut Vec<String>) -> Result<(), Unclear> {
        if self.rest().starts_with("<(") || self.rest().starts_with(">(") {
            let word = self.word()?;
            words.push(word);
            return Ok(());
        }
        if self.eat_if("<<<") {
            return Ok(());
        }
        let tabs = self.rest().starts_with("<<-");
        if self.eat_if("<<-") || self.eat_if("<<") {
            while self.peek().is_some_and(|c| c == ' ' || c == '\t') {
                self.eat();
            }
            let end = self.word()?;
            let plain: String = end.chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
            if plain.is_empty() || plain.contains(['$', '`']) {
                return Err((self.line, "a here-document with an end that is not plain"));
            }
            self.here.push(Here { quoted: plain != end, end: plain, tabs });
            return Ok(());
        }
        self.eat();
        // `>|`, `>&`, `<&`, `<>`: what follows is a word of the redirection.
        while self.peek().is_some_and(|c| matches!(c, '>' | '|' | '&')) {
            self.eat();
        }
        while self.peek().is_some_and(|c| c == ' ' || c == '\t') {
            self.eat();
        }
        match self.peek() {
            Some(c) if !c.is_whitespace() => self.word().map(drop),
            _ => Err((self.line, "a redirection to nothing")),
        }
    }

    fn here_documents(&mut self) -> Result<(), Unclear> {
        for Here { end, tabs, quoted } in std::mem::take(&mut self.here) {
            let begin = self.line;
            let text_begin = self.at;
            loop {
                let rest = self.rest();
                if rest.is_empty() {
                    return Err((begin, "a here-document that does not end"));
                }
                let text_end = self.at;
                let line = rest.lines().next().unwrap_or_default();
                for _ in line.chars() {
                    self.eat();
                }
                self.eat();
                let line = if tabs { line.trim_start_matches('\t') } else { line };
                if line == end {
                    if !quoted {
                        self.marks_within(text_begin, text_end, false);
                    }
                    break;
                }
            }
        }
        Ok(())
    }

    /// Finds where a text within the script reads its path: that of a here-document, or commands.
    fn marks_within(&mut self, begin: usize, end: usize, commands: bool) {
        let mut inner = Scanner { at: begin, ..Scanner::of(&self.text[..end]) };
        while let Some(c) = inner.peek() {
            if commands || matches!(c, '\\' | '$' | '`') {
                if inner.part().is_err() {
                    break;
                }
            } else {
                inner.eat();
            }
        }
        self.marks.append(&mut inner.marks);
    }

    /// Looks for the path of the script behind a `$`.
    fn mark(&mut self) {
        let begin = self.at;
        let rest = self.rest();
        let (name, braces) = rest.strip_prefix('{').map_or((rest, false), |name| (name, true));
        let begin = begin + usize::from(braces);
        let bare = name.trim_start_matches(['#', '!']);
        let ends = |text: &str| !text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let end = match (name.strip_prefix('0'), name.strip_prefix("BASH_SOURCE").filter(|rest| ends(rest))) {
            (Some(rest), _) if !braces || ends(rest) => begin + 1,
            (_, Some(rest)) if braces && rest.starts_with("[0]") => begin + "BASH_SOURCE[0]".len(),
            (_, Some(rest)) if !braces || !rest.starts_with('[') => begin + "BASH_SOURCE".len(),
            _ => {
                if braces && (bare.starts_with("BASH_SOURCE") || bare.starts_with("0}")) {
                    self.marks.push(SelfMark::Other { begin });
                }
                return;
            }
        };
        let begin = if braces { begin } else { begin - 1 };
        self.marks.push(SelfMark::Name { begin, end, braces });
    }

    /// Takes a word with all its quotes and expansions.
    fn word(&mut self) -> Result<String, Unclear> {
        let begin = self.at;
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\n' | ';' | '|' | ')' => break,
                '&' => break,
                '<' | '>' => {
                    if self.rest()[1..].starts_with('(') && self.at == begin {
                        self.eat();
                        self.balanced('(', ')')?;
                        continue;
                    }
                    break;
                }
                // A list of values: `name=(…)`; else a function or a subshell.
                '(' if self.text[begin..self.at].ends_with('=') => self.balanced('(', ')')?,
                '(' if self.text[begin..self.at].ends_with(['?', '*', '+', '@', '!']) => {
                    self.balanced('(', ')')?;
                }
                '(' => break,
                _ => self.part()?,
            }
        }
        if self.at == begin {
            return Err((self.line, "something that is no word"));
        }
        Ok(self.text[begin..self.at].to_owned())
    }

    /// Takes one character, or what is quoted or expanded.
    fn part(&mut self) -> Result<(), Unclear> {
        let line = self.line;
        match self.eat() {
            Some('\\') => drop(self.eat()),
            Some('\'') => self.until('\'', false, line)?,
            Some('"') => loop {
                match self.peek() {
                    None => return Err((line, "a quote that does not end")),
                    Some('"') => {
                        self.eat();
                        break;
                    }
                    Some('\'') => drop(self.eat()),
                    Some(_) => self.part()?,
                }
            },
            Some('`') => {
                let begin = self.at;
                self.until('`', true, line)?;
                self.marks_within(begin, self.at - 1, true);
            }
            Some('$') => {
                self.mark();
                match self.peek() {
                    Some('(') => self.balanced('(', ')')?,
                    Some('{') => self.balanced('{', '}')?,
                    Some('\'') => {
                        self.eat();
                        self.until('\'', true, line)?;
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn until(&mut self, end: char, escapes: bool, line: usize) -> Result<(), Unclear> {
        loop {
            match self.eat() {
                None => return Err((line, "a quote that does not end")),
                Some('\\') if escapes => drop(self.eat()),
                Some(c) if c == end => return Ok(()),
                Some(_) => {}
            }
        }
    }

    /// Takes what stands between two brackets, which may hold quotes and more of them.
    fn balanced(&mut self, open: char, close: char) -> Result<(), Unclear> {
        let line = self.line;
        let mut depth = 0;
        loop {
            match self.peek() {
                None => return Err((line, "a bracket that does not end")),
                Some(c) if c == open => {
                    depth += 1;
                    self.eat();
                }
                Some(c) if c == close => {
                    depth -= 1;
                    self.eat();
                    if depth == 0 {
                        return Ok(());
                    }
                }
                Some('#') if open == '(' && self.text[..self.at].ends_with([' ', '\n', '\t']) => {
                    self.comment();
                }
                Some(_) => {
                    if open == '('
                        && !self.lenient
                        && (self.rest().starts_with("case ") || self.rest().starts_with("<<"))
                    {
                        return Err((self.line, "a `case` or here-document within a substitution"));
                    }
                    self.part()?;
                }
            }
        }
    }
}

fn is_function_name(name: &str) -> bool {
    !name.contains(['$', '"', '\'', '`', '=', '\\'])
}

fn end_command(unit: &mut Unit, words: &mut Vec<String>, simple: &mut usize) {
    if !words.is_empty() {
        unit.commands.push(std::mem::take(words));
        *simple += 1;
    }
}
