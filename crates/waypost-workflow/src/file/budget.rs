//! Budget of a run: tokens and cost of all steps.

use waypost::record::Usage;

use super::checker::Checker;
use super::fields::{Fields, KeySet};
use super::node::{Kind, Node};
use super::units::parse_count;

/// Largest budget in tokens; beyond it a valid sum could not be distinguished from a saturated sum.
const TOKENS_MAX: u64 = 1_000_000_000_000_000;

/// Tolerance for rounding in sums of fractions: ten times 0.1 does not exceed 1.
const ROUNDING: f64 = 1e-9;

pub(super) static BUDGET: KeySet =
    KeySet { what: "`budget`", keys: &["cost", "tokens"], later: &[], elsewhere: &[] };

/// Limits for all steps of a run together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Budget {
    /// Cost, in the currency of the steps' reports.
    pub cost: Option<f64>,
    /// Tokens, input and output added.
    pub tokens: Option<u64>,
}

impl Budget {
    /// Returns the usage and the limit of each exceeded limit, as text; `None` if no limit is exceeded.
    #[must_use]
    pub fn passed_by(&self, used: &Usage) -> Option<String> {
        let tokens = used.tokens_in.saturating_add(used.tokens_out);
        let passed_cost = self.cost.filter(|cost| used.cost > *cost + ROUNDING);
        let passed_tokens = self.tokens.filter(|limit| tokens > *limit);
        let cost = passed_cost.map(|limit| format!("cost {} of {}", money(used.cost), money(limit)));
        let tokens = passed_tokens.map(|limit| format!("{tokens} of {limit} tokens"));
        let parts: Vec<String> = cost.into_iter().chain(tokens).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Formats a sum so that a small excess over the limit is visible.
fn money(sum: f64) -> String {
    let rounded = format!("{sum:.2}");
    match rounded.parse::<f64>() {
        Ok(same) if (same - sum).abs() < ROUNDING => rounded,
        _ => format!("{sum:.6}").trim_end_matches('0').to_owned(),
    }
}

/// Reads `budget`.
pub(super) fn budget(checker: &mut Checker<'_>, node: &Node) -> Option<Budget> {
    let fields = Fields::of(checker, node, &BUDGET)?;
    let cost = fields.get("cost").map(|node| cost(checker, node));
    let tokens = fields.get("tokens").map(|node| tokens(checker, node));
    if cost.is_none() && tokens.is_none() && !fields.has_any(BUDGET.keys) {
        checker.wrong(node, "`budget` has no limit", "write `budget: { cost: 5.00, tokens: 2M }`");
    }
    Some(Budget { cost: cost.flatten(), tokens: tokens.flatten() })
}

fn cost(checker: &mut Checker<'_>, node: &Node) -> Option<f64> {
    let help = "write a number without a currency: `cost: 5.00`";
    match &node.kind {
        Kind::Number(number) => match number.as_f64().filter(|cost| cost.is_finite() && *cost > 0.0) {
            Some(cost) => Some(cost),
            None => {
                checker.wrong(node, "`cost` must be positive", "omit the key for no limit");
                None
            }
        },
        _ => {
            checker.mismatch(node, "cost", "a number", help);
            None
        }
    }
}

fn tokens(checker: &mut Checker<'_>, node: &Node) -> Option<u64> {
    let read = match &node.kind {
        Kind::Text(_) | Kind::Number(_) => parse_count(node.spelled().unwrap_or_default()),
        _ => {
            checker.mismatch(node, "tokens", "a number", "write a number: `50000`, `200k`, `2M`");
            return None;
        }
    };
    match read {
        Ok(0) => {
            checker.wrong(node, "`tokens` must be positive", "omit the key for no limit");
            None
        }
        Ok(count) if count > TOKENS_MAX => {
            checker.wrong(node, "`tokens` is too large", "omit the key for no limit");
            None
        }
        Ok(count) => Some(count),
        Err(error) => {
            checker.wrong(node, format!("`tokens`: {}", error.message), &error.help);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use waypost::record::Usage;

    use super::Budget;

    #[test]
    fn a_budget_is_passed_by_more_than_it_has() {
        let budget = Budget { cost: Some(5.0), tokens: Some(100) };
        let passed = |cost, tokens_in, tokens_out| {
            budget.passed_by(&Usage { cost, tokens_in, tokens_out, model: None })
        };

        assert_eq!(passed(5.0, 60, 40), None);
        assert_eq!(passed(0.1 * 3.0 + 4.7, 0, 0), None);
        assert_eq!(passed(5.5, 0, 0).as_deref(), Some("cost 5.50 of 5.00"));
        assert_eq!(passed(5.0001, 60, 41).as_deref(), Some("cost 5.0001 of 5.00, 101 of 100 tokens"));
        assert_eq!(passed(0.0, u64::MAX, 1).as_deref(), Some("18446744073709551615 of 100 tokens"));
    }
}
