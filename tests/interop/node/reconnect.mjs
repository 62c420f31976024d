// amqp-connection-manager: consumes and publishes on, over a broker that is killed and started again.
import { connect } from 'amqp-connection-manager';
import { createInterface } from 'node:readline';
import { name, tell, url } from './story.mjs';

const bodies = new Set();
let wake = () => {};
const connection = connect([url], { heartbeatIntervalInSeconds: 2, reconnectTimeInSeconds: 0.1 });
const channel = connection.createChannel({
  setup: async (inner) => {
    await inner.assertQueue(name, { durable: true });
    await inner.prefetch(5);
    await inner.consume(name, (message) => {
      bodies.add(message.content.toString());
      inner.ack(message);
      wake();
    });
  },
});
await channel.waitForConnect();

async function until(body) {
  while (!bodies.has(body)) await new Promise((resolve) => { wake = resolve; });
}

await channel.sendToQueue(name, Buffer.from('before'), { persistent: true });
await until('before');
const gone = new Promise((resolve) => connection.once('disconnect', resolve));
console.log('consuming'); // the test kills the broker when it reads this
await gone;
const published = channel.sendToQueue(name, Buffer.from('meanwhile'), { persistent: true }); // kept until there is one
console.log('disconnected'); // and starts it again when it reads this
await published;
await until('meanwhile');
await channel.close();
await connection.close();
createInterface({ input: process.stdin }).close();
tell({ bodies: [...bodies].sort() });
