//! Evidence about what answers over a connection: what is known to be wrong before anything runs.

use crate::assert_text;
use crate::file_bad::answers;

fn wrong(name: &str, claims: &[&str]) {
    let file = |claim: &&str| format!("steps:\n  - run: x\n    evidence: [ {{ {claim} }} ]\n");
    let files: Vec<String> = claims.iter().map(file).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_text(name, &answers(&files));
}

#[test]
fn an_api_that_cannot_be_asked_or_judged_is_refused() {
    wrong(
        "http_wrong",
        &[
            "http: api.example",
            "http: 'ftp://api.example/'",
            "http: 'https://me:hunter22@api.example/'",
            "http: 'https://api.example/a b'",
            "http: 'https://api.example/', status: '> many', method: DELETE",
            "http: 'https://api.example/', method: HEAD, contains: x",
            "http: 'https://api.example/', headers: [a], json: {}",
            "http: 'https://api.example/', headers: { 'a b': c }, json: { status: ok }",
            "http: 'https://api.example/', headers: { a: [] }, json: { $.a: '~ (' }",
            "http: 'https://api.example/', contains: [], private: yes, body: { a: b }",
            "http: 'https://api.example/', statsu: 200",
            "port: http",
        ],
    );
}

#[test]
fn an_api_from_an_expression_is_probed_once_known() {
    wrong(
        "http_good",
        &[
            "http: '${{ run.id }}'",
            "http: 'http://localhost:8080/', status: 200",
            "http: 'https://api.example/items?id=${{ run.id }}', headers: { etag: null }, json: { '$.a[0]': '${{ run.id }}' }",
        ],
    );
}

#[test]
fn a_container_that_cannot_be_is_refused() {
    wrong(
        "container_wrong",
        &[
            "container: ''",
            "container: a/b",
            "container: web, running: maybe, healthy: 1, engine: dcoker",
            "container: web, image: [], healty: true",
            "container: web, running: false, image: '~ ^nginx:', engine: podman",
        ],
    );
}

#[test]
fn a_database_that_cannot_be_asked_is_refused() {
    wrong(
        "postgres_wrong",
        &[
            "postgres: 'postgres://me:hunter22@db.example/jobs', table: jobs",
            "postgres: 'host=db.example password=hunter22', table: jobs",
            "postgres: 'env:A B', table: jobs",
            "postgres: jobs, table: jobs",
            "postgres: 'env:DATABASE_URL'",
            "postgres: 'env:DATABASE_URL', table: jobs, query: SELECT 1",
            "postgres: 'env:DATABASE_URL', query: DELETE FROM jobs, equals: 0",
            "postgres: 'env:DATABASE_URL', query: ''",
            "postgres: 'env:DATABASE_URL', table: jobs, where: [a], values: {}, count: '> many'",
            "postgres: 'env:DATABASE_URL', table: jobs, where: { id: [1, 2] }, values: { state: '> many', id: [1, '~ x'] }",
            "sqlite: a.db, table: jobs, where: { id: [] }, values: { state: [] }",
            "postgres: 'postgres://me@db.example/jobs', table: jobs, where: { id: 1 }, values: { note: null }, count: 1",
            "postgres: 'env:DATABASE_URL', query: '${{ run.id }}', equals: 1",
            "sqlite: 'postgres://db.example/jobs', table: jobs",
        ],
    );
}
