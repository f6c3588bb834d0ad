//! Tokens and cost for display.

use waypost::record::Usage;

/// Formats usage as short text.
pub(crate) fn shown(usage: &Usage) -> String {
    let mut parts = Vec::new();
    if usage.tokens_in > 0 || usage.tokens_out > 0 {
        parts.push(format!("{} tokens read, {} written", usage.tokens_in, usage.tokens_out));
    }
    if usage.cost > 0.0 {
        parts.push(format!("cost {:.4}", usage.cost));
    }
    parts.join(", ")
}
