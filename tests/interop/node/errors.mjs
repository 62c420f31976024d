import { amqp, deadLettering, name, tell, url } from './story.mjs';

const connection = await amqp.connect(url);

async function refused(act) {
  const channel = await connection.createConfirmChannel();
  const heard = new Promise((resolve) => channel.on('error', resolve));
  try { await act(channel); } catch { /* the event says the same */ }
  const error = await heard;
  return { code: error.code, message: error.message };
}

await deadLettering(await connection.createChannel());
const mismatch = await refused((channel) => channel.assertQueue(name, { durable: false }));
const missing = await refused((channel) => channel.checkQueue(`${name}.missing`));
const channel = await connection.createConfirmChannel();
const returned = new Promise((resolve) => channel.on('return', resolve));
channel.publish('', `${name}.nowhere`, Buffer.from('lost?'), { mandatory: true });
await channel.waitForConfirms();
const back = await returned;
await channel.assertQueue(`${name}.full`, { maxLength: 1, arguments: { 'x-overflow': 'reject-publish' } });
let nacked = null;
for (let attempt = 0; attempt < 3 && !nacked; attempt += 1) {
  nacked = await new Promise((resolve) => channel.sendToQueue(`${name}.full`, Buffer.from('x'), {}, resolve));
}
const wrong = await amqp.connect(url.replace('guest:guest', 'guest:wrong')).catch((error) => error.message);
await connection.close();
tell({ mismatch, missing, returned: [back.fields.replyCode, back.content.toString()], nacked: nacked?.message, wrong });
