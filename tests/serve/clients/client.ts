// A client of the types that openapi-typescript makes: it compiles, and asks a running service.
import createClient from "openapi-fetch";
import type { components, paths } from "./nearwise.js";

declare const process: { argv: string[] };
const client = createClient<paths>({ baseUrl: process.argv[2] });
const row = { age: 1, income: null, town: "Rome" };

function known<T>(answer: { data?: T; error?: components["schemas"]["Problem"] }): T {
  if (answer.data === undefined) throw new Error(answer.error?.detail);
  return answer.data;
}

const predicted = known(await client.POST("/predict", { body: { rows: [row], confidence: 0.8 } }));
const first: components["schemas"]["Prediction"] = predicted.predictions[0]!;
// @ts-expect-error: it is there on request only
const novelty: number = first.novelty_p;
// @ts-expect-error: no rows in any form
const nothing = await client.POST("/predict", { body: { confidence: 0.8 } });

const body = { remembered: 3, without: [4], relabel: { "5": "no" }, column_shares: true };
const explained = known(await client.POST("/explain", { body }));
const shares = explained.predictions[0]!.neighbors.map((one) => one.column_shares ?? {});

const added = known(
  await client.POST("/rows", {
    body: { rows: [row], labels: ["yes"] },
    params: { header: { "Idempotency-Key": "typescript" } },
  }),
);
const path = { version: added.memory_version };
const undone = known(await client.POST("/changes/{version}/undo", { params: { path } }));
const found = known(await client.GET("/review", { params: { query: { kind: "label" } } }));
const refused = await client.GET("/rows/{id}", { params: { path: { id: 100000 } } });

console.log(
  JSON.stringify({
    label: first.label,
    sets: first.set,
    novelty: novelty === undefined,
    refusal: nothing.error?.status,
    shares: shares.length,
    undone: undone.kind,
    findings: found.n_findings,
    missing: refused.error?.detail,
  }),
);
