//! The place of `postgres` in a build without that feature.

use waypost::evidence::Finding;
use waypost::record::Claim;

use crate::databases::rows::RowExpectation;
use crate::databases::subject::PgVariables;
use crate::left_out;

pub(crate) async fn check(_: &Claim, _: RowExpectation, _: PgVariables) -> Result<Finding, Finding> {
    Err(Finding::unknown(left_out("postgres")))
}

pub(crate) fn check_subject(_: &str) -> Result<(), String> {
    Err(left_out("postgres"))
}

pub(crate) fn is_here(_: &str) -> bool {
    false
}
