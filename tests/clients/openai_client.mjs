// Drive the OpenAI SDK: reads one request per line from stdin, writes one result per line to stdout.
import OpenAI from "openai";
import { createInterface } from "node:readline";

const collect = async (stream) => {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
};

const modes = {
  chat: {
    whole: (client, request) => client.chat.completions.create(request),
    raw: async (client, request) =>
      collect(await client.chat.completions.create({ ...request, stream: true })),
    helper: (client, request) => client.chat.completions.stream(request).finalChatCompletion(),
  },
  responses: {
    whole: (client, request) => client.responses.create(request),
    raw: async (client, request) =>
      collect(await client.responses.create({ ...request, stream: true })),
    helper: (client, request) => client.responses.stream(request).finalResponse(),
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { base, api, way: mode, request } = JSON.parse(line);
  const client = new OpenAI({ baseURL: base, apiKey: "client-key", maxRetries: 0 });
  try {
    console.log(JSON.stringify({ result: await modes[api][mode](client, request) }));
  } catch (error) {
    const details = { name: error.constructor.name, status: error.status ?? null, code: error.code ?? null };
    console.log(JSON.stringify({ error: { ...details, message: error.message } }));
  }
}
