// A session over HTTP with the TypeScript SDK: node http.mjs 1|2 ADDRESS TOKEN
const [version, address, token] = process.argv.slice(2);
const { Client } = await import(
  version === "1" ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client"
);
const { StreamableHTTPClientTransport } = await import(
  version === "1" ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client"
);
const client = new Client({ name: "test", version: "1" });
const requestInit = { headers: { authorization: `Bearer ${token}` } };
await client.connect(new StreamableHTTPClientTransport(new URL(address), { requestInit }));
const call = (name, args, options) => {
  const request = { name, arguments: args };
  return version === "1" ? client.callTool(request, undefined, options) : client.callTool(request, options);
};
const { tools } = await client.listTools();
const progress = [];
const result = await call("search", { query: "sky" }, { onprogress: (event) => progress.push(event.message) });
const controller = new AbortController();
let abortOutcome = "an answer";
try {
  const onprogress = () => controller.abort("enough");
  await call("search", { query: "PLEASE HANG" }, { signal: controller.signal, onprogress });
} catch (error) {
  abortOutcome = String(error);
}
const job = await call("deep_search", { query: "sky", wait_seconds: 0 });
const jobResult = await call("deep_search_result", { job_id: job.structuredContent.job_id });
const { resources } = await client.listResources();
const report = await client.readResource({ uri: `report://${job.structuredContent.job_id}` });
await client.close();
console.log(
  JSON.stringify({
    tools: tools.map((tool) => tool.name),
    progress,
    result: result.structuredContent,
    left: abortOutcome,
    job: jobResult.structuredContent,
    resources: resources.map((resource) => resource.uri),
    report: report.contents[0].text,
  }),
);
