import { amqp, first, name, tell, url } from './story.mjs';

const connection = await amqp.connect(url);
const channel = await connection.createConfirmChannel();
await channel.assertExchange(name, 'topic', { durable: true });
await channel.assertQueue(name, { durable: true });
await channel.bindQueue(name, name, 'orders.*');
const body = Buffer.alloc(300_000, 'x');
channel.publish(name, 'orders.new', body, { persistent: true, headers: { text: 'zoë', list: [1, { deep: true }] } });
await channel.waitForConfirms();
const message = await first(channel, name);
channel.ack(message);
await channel.close();
await connection.close();
tell({
  size: message.content.length,
  key: message.fields.routingKey,
  redelivered: message.fields.redelivered,
  headers: message.properties.headers,
  mode: message.properties.deliveryMode,
});
