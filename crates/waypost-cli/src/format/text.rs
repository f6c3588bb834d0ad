//! Words and paths as a person types them in a shell; tokens and cost.

use std::path::Path;

use waypost::record::Usage;

/// Quotes a word for a shell, if it must be.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Formats a count with its noun.
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Returns a path relative to the current folder, if below it.
pub(crate) fn relative_to_here(path: &Path) -> std::path::PathBuf {
    let here = std::env::current_dir().ok();
    here.and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path).to_owned()
}

/// Formats usage as short text.
pub(crate) fn tokens_and_cost(usage: &Usage) -> String {
    let mut parts = Vec::new();
    if usage.tokens_in > 0 || usage.tokens_out > 0 {
        parts.push(format!("{} tokens read, {} written", usage.tokens_in, usage.tokens_out));
    }
    if usage.cost > 0.0 {
        parts.push(format!("cost {:.4}", usage.cost));
    }
    parts.join(", ")
}
