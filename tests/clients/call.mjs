// Call the server with the TypeScript SDK: node call.mjs 1|2 COMMAND-AS-JSON ARGUMENTS-AS-JSON
const [version, command, args] = process.argv.slice(2);
const [program, ...programArgs] = JSON.parse(command);
const { Client } = await import(
  version === "1" ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client"
);
const { StdioClientTransport } = await import(
  version === "1" ? "@modelcontextprotocol/sdk/client/stdio.js" : "@modelcontextprotocol/client/stdio"
);
const client = new Client({ name: "test", version: "1" });
await client.connect(new StdioClientTransport({ command: program, args: programArgs, env: process.env, stderr: "ignore" }));
const { tools } = await client.listTools(); // from here on the client validates results against the schemas
const progress = [];
const options = { onprogress: (event) => progress.push(event.message) };
const call = { name: "search", arguments: JSON.parse(args) };
const result = version === "1" ? await client.callTool(call, undefined, options) : await client.callTool(call, options);
await client.close();
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), progress, result }));
