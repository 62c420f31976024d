import { amqp, name, tell, url } from './story.mjs';

const connection = await amqp.connect(url);
const channel = await connection.createConfirmChannel();
await channel.assertQueue(name);
for (const body of ['a', 'b', 'c']) channel.sendToQueue(name, Buffer.from(body));
await channel.waitForConfirms();
await channel.prefetch(2);
const got = [];
let third;
const all = new Promise((resolve) => { third = resolve; });
await channel.consume(name, (message) => { got.push(message); if (got.length === 3) third(); });
const { messageCount } = await channel.checkQueue(name);
const held = got.length;
channel.ack(got[0]);
await all;
await connection.close();
tell({ held, waiting: messageCount, bodies: got.map((message) => message.content.toString()) });
