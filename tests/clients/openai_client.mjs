// The OpenAI SDK as its users use it: a request a line on stdin, what came of it a line on stdout.
import OpenAI from "openai";
import { createInterface } from "node:readline";

const accumulated = async (stream) => {
  const all = [];
  for await (const item of stream) all.push(item);
  return all;
};

const ways = {
  chat: {
    whole: (client, request) => client.chat.completions.create(request),
    raw: async (client, request) =>
      accumulated(await client.chat.completions.create({ ...request, stream: true })),
    helper: (client, request) => client.chat.completions.stream(request).finalChatCompletion(),
  },
  responses: {
    whole: (client, request) => client.responses.create(request),
    raw: async (client, request) =>
      accumulated(await client.responses.create({ ...request, stream: true })),
    helper: (client, request) => client.responses.stream(request).finalResponse(),
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { base, api, way, request } = JSON.parse(line);
  const client = new OpenAI({ baseURL: base, apiKey: "client-key", maxRetries: 0 });
  try {
    console.log(JSON.stringify({ result: await ways[api][way](client, request) }));
  } catch (error) {
    const told = { name: error.constructor.name, status: error.status ?? null, code: error.code ?? null };
    console.log(JSON.stringify({ error: { ...told, message: error.message } }));
  }
}
